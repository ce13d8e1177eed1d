"""``cursus-storage``, and ``python -m cursus.cli``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command. Ctrl-C ends it quietly while its modules are still being read, too."""
    try:
        from cursus.cli.storage import main as command

        return command()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
