"""The built wheel in an environment of its own: the plugin is there and works.

Nothing is downloaded: the wheel is built with the setuptools that is installed,
and the new environment sees the dependencies of this one, but not the project.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import index_help as help_
import pytest

from inspect_db.queries_catalogue import named_queries

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
#: What a Datasette in the new environment says of the plugin and of an index.
PROGRAM = """
import asyncio, json, sys
import cursus, inspect_db
from datasette.app import Datasette

async def main(index, evidence):
    datasette = Datasette(
        files=[index], metadata={"plugins": {"cursus-storage": {"evidence": evidence}}}
    )
    await datasette.invoke_startup()
    get = datasette.client.get
    plugins = {item["name"]: item for item in (await get("/-/plugins.json")).json()}
    style = await get("/-/static-plugins/cursus-storage/cursus.css")
    sql = "select payload(file_id, position) from largest_records limit 1"
    rows = (await get("/index.json", params={"sql": sql})).json()
    print(json.dumps({
        "from": inspect_db.__file__,
        "plugin": plugins["cursus-storage"],
        "style": [style.status_code, style.headers["content-type"]],
        "pages": [
            (await get(path)).status_code
            for path in ("/-/cursus", "/-/cursus/index/", "/-/cursus/index/verdict.json",
                         "/-/cursus/index/group/billing", "/-/cursus/index/topic/orders/0")
        ],
        "queries": len((await get("/index.json")).json()["queries"]),
        "read": bool(rows["rows"][0][0]),
    }))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    # A copy: building leaves folders beside the sources.
    for name in ("pyproject.toml", "README.md", "LICENSE", "cursus", "inspect_db"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    command = [*PIP, "wheel", "--no-index", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (found,) = folder.glob("*.whl")
    return found


def test_the_plugin_of_the_wheel_appears_and_works(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    packages = next(home.glob("lib/python*/site-packages"))
    subprocess.run(
        [*PIP, "install", "--no-index", "--no-deps", "--target", str(packages), str(wheel)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    dependencies = tmp_path / "dependencies"
    dependencies.mkdir()
    for folder in site.getsitepackages():
        for item in Path(folder).iterdir():
            # All but the project itself, and what starts by itself.
            mine = item.name.lower().startswith(("cursus", "__editable__"))
            if not mine and item.suffix != ".pth":
                (dependencies / item.name).symlink_to(item)
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    arguments = [str(help_.built("small-healthy")), str(help_.log_dir("small-healthy"))]
    result = subprocess.run(
        [str(home / "bin" / "python"), "-c", PROGRAM, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout)
    assert Path(found["from"]).is_relative_to(home)
    assert found["plugin"]["static"]
    assert found["plugin"]["templates"]
    assert found["style"] == [200, "text/css"]
    assert found["pages"] == [200] * 5
    assert found["queries"] == len(named_queries())
    assert found["read"] is True
