# Two commands do everything: `make demo` and `make test`.
# Both set the project up first, in .venv inside this checkout.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: setup demo browse test lint docs fuzz crash soak bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo 'Installing into $(VENV); this takes about a minute, once.' >&2
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[test]'
	@touch $@

demo: setup
	@$(BIN)/python tools/demo.py

# The same captures to click through: make browse CASE=offset-goes-backwards PORT=8002
browse: setup
	@$(BIN)/python tools/browse.py $(CASE) $(if $(PORT),--port $(PORT))

# strace proves that nothing is written below a log directory, and Chromium
# walks through the pages. Where one is missing and cannot be installed within
# three minutes, its tests say that they were skipped.
test: setup
	@if [ "$$(id -u)" = 0 ] && ! { command -v strace && command -v chromium; } >/dev/null; then \
		{ timeout 60 apt-get -qq update && timeout 180 env DEBIAN_FRONTEND=noninteractive \
		apt-get -qq install -y --no-install-recommends strace chromium; } >/dev/null 2>&1 || true; \
	fi
	@$(MAKE) --no-print-directory lint
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# Generated pages of docs/; a test fails when they are out of date.
docs: setup
	@$(BIN)/python tools/generate_docs.py

# A million mutations of log directories; minutes to hours.
fuzz: setup
	@$(BIN)/python -m pytest tests/test_hostile.py -n $(JOBS) --fuzz-mutations 1000000

# Ratios inside one run on this machine; minutes. BENCH="scan --runs 3 --json" picks and shapes.
bench: setup
	@$(BIN)/python -m bench $(BENCH)

# A hundred thousand disk states that a crash could leave, each started and held
# to the laws of tests/crash/harness.py. Minutes. With FAULTS=8 the disk fails
# instead, at every operation of the named workloads and of eight random ones.
crash: setup
	@cd tests && ../$(BIN)/python -m crash.campaign --jobs $(JOBS) \
		$(if $(FAULTS),--faults $(FAULTS),--states 100000)

# A store under load, killed 200 times on one directory.
soak: setup
	@$(BIN)/python -m pytest tests/test_kill.py --kill-rounds 200 -s

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
