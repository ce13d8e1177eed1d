"""``python -m inspect_db`` is ``inspect-db``."""

from inspect_db.cli import main

main()
