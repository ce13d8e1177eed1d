"""Ctrl-C before a command has begun: while Python is still reading its modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Interrupts the import of one module, wherever it stands in the order.
PROGRAM = """
import sys
module = sys.argv[1]
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from {entry} import main
sys.argv[1:] = {words}
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("entry", "words"),
    [("inspect_db.__main__", ["verdict", "."]), ("cursus.cli.__main__", ["manifest", "inspect"])],
)
@pytest.mark.parametrize("module", ["cursus.layout", "numpy", "cursus.evidence.walk"])
def test_an_import_that_is_interrupted_is_no_traceback(
    entry: str, words: list[str], module: str
) -> None:
    program = PROGRAM.format(entry=entry, words=words)
    done = subprocess.run(
        [sys.executable, "-c", program, module], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")
