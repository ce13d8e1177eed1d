# Two commands do everything: `make demo` and `make test`.
# Both set the project up first, in .venv inside this checkout.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: setup demo test lint docs fuzz bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[test]'
	@touch $@

demo: setup
	@$(BIN)/python tools/demo.py

# strace proves that nothing is written below a log directory. Where it is
# missing and cannot be installed, that test says that it was skipped.
test: setup
	@command -v strace >/dev/null || { [ "$$(id -u)" = 0 ] && \
		apt-get -qq update >/dev/null 2>&1 && \
		apt-get -qq install -y strace >/dev/null 2>&1; } || true
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

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
