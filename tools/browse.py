"""A captured log directory to click through: build it, index it, serve it.

    python tools/browse.py [CASE] [--port N]

CASE is a folder of ``fixtures/``; without it the web shop whose broker was
killed is shown. Everything stands in a temporary directory and is gone when the
server ends (Ctrl-C).
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from demo import ROOT, build, program

from inspect_db import fixtures

CASE = "shop-killed"


def main() -> int:
    """Serve until interrupted; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("case", nargs="?", default=CASE)
    parser.add_argument("--port", default="8001")
    given = parser.parse_args()
    known = [item.name for item in fixtures.find(ROOT / "fixtures")]
    if given.case not in known:
        print(f"no case {given.case!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    # A termination leaves nothing behind either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="cursus-") as folder:
        where = Path(folder)
        moment = build([given.case], where)[given.case]
        index = f"{given.case}.db"
        command = [*program(), "build", given.case, "-o", index, "--as-of", moment]
        subprocess.run(command, cwd=where, check=True)
        serve = [*program(), "serve", index, "--evidence", given.case, "--port", given.port]
        with subprocess.Popen(serve, cwd=where) as server:
            try:
                return server.wait()
            except KeyboardInterrupt:
                server.terminate()
                server.wait()
                return 0


if __name__ == "__main__":
    sys.exit(main())
