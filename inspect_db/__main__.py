"""``inspect-db``, and ``python -m inspect_db``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command. Ctrl-C ends it quietly while its modules are still being read, too."""
    try:
        from inspect_db.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
