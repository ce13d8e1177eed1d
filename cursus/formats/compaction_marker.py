"""The marker beside a compacted log: ``<log>.compacted-<size>``.

It proves that the closed log of exactly ``<size>`` bytes may have holes in its
offsets. The content is always the same::

    63 75 72 73 75 73 2d 63 6f 6d 70 61 63 74 69 6f 6e 2d 76 31 0a
    "cursus-compaction-v1\\n"                                  21 bytes

A marker for another size is stale: a leftover of the generation before, or one
written ahead of a rename that never came.

Source: segments.md sections 2, 9, 13.
"""

from __future__ import annotations

from typing import Final

CONTENT: Final = b"cursus-compaction-v1\n"
SIZE: Final = 21
assert len(CONTENT) == SIZE


def is_valid(data: bytes) -> bool:
    """Exactly the 21 bytes, not more."""
    return data == CONTENT


def encode() -> bytes:
    """The content of a marker."""
    return CONTENT
