"""Command lines: thin skins over the library."""
