"""Cursus: a partitioned-log message broker whose files are the only truth."""

__version__ = "0.1.0"
