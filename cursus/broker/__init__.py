"""The broker: runtime and operations on open storage."""
