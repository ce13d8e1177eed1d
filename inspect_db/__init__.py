"""The forensic bench: replays a log directory into SQLite and answers in SQL."""
