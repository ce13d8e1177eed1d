"""Bytes to values and back, one module for each format. Pure: no files, no clock."""
