"""The three files of a partition's aggregates, in ``<topic>/partition_<p>/``.

``partition_<p>_stream.idx``, fixed entries of 32 bytes in append order::

    8   key hash            FNV-1a-64 of the key
    8   aggregate version   u64
    8   log offset          u64
    8   position            always 0

``partition_<p>_stream_keys.dat``, one record a key, written before its first entry::

    8   key hash
    2+n key                 u16 length + bytes

``partition_<p>_snapshots.dat``, append-only; the last record of a key wins::

    2+n key                 u16 length + bytes
    8   version             u64
    4+m payload             u32 length + bytes

No file has a header or a checksum. Index and keys are derived from the log and
rebuilt from it; aggregate snapshots come from clients and cannot be derived.

Source: journal.md section 7.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from cursus.formats.consumer_metadata import fnv1a64

INDEX_ENTRY_BYTES: Final = 32
_INDEX_ENTRY = struct.Struct(">QQQQ")
_KEY_HEAD = struct.Struct(">QH")
_U16 = struct.Struct(">H")
_VERSION_LENGTH = struct.Struct(">QI")
assert _INDEX_ENTRY.size == INDEX_ENTRY_BYTES
assert _KEY_HEAD.size == 10
assert _VERSION_LENGTH.size == 12

__all__ = [
    "INDEX_ENTRY_BYTES",
    "AggregateIndexEntry",
    "AggregateKey",
    "AggregateSnapshot",
    "decode_index",
    "decode_keys",
    "decode_snapshots",
    "encode_index_entry",
    "encode_key",
    "encode_snapshot",
    "fnv1a64",
]


@dataclass(frozen=True, slots=True)
class AggregateIndexEntry:
    """Where one version of an aggregate stands in the log."""

    key_hash: int
    version: int
    offset: int
    position: int = 0


@dataclass(frozen=True, slots=True)
class AggregateKey:
    """A key and the hash that the index has for it; ``at`` is its byte position."""

    key_hash: int
    key: bytes
    at: int = 0


@dataclass(frozen=True, slots=True)
class AggregateSnapshot:
    """A saved state. ``at`` and ``length`` give its place in the file."""

    key: bytes
    version: int
    payload: bytes
    at: int = 0
    length: int = 0


def decode_index(data: bytes) -> tuple[list[AggregateIndexEntry], int]:
    """Whole entries, and the byte where an unfinished one begins (= length without one)."""
    whole = len(data) - len(data) % INDEX_ENTRY_BYTES
    entries = [AggregateIndexEntry(*fields) for fields in _INDEX_ENTRY.iter_unpack(data[:whole])]
    return entries, whole


def encode_index_entry(entry: AggregateIndexEntry) -> bytes:
    """32 bytes."""
    return _INDEX_ENTRY.pack(entry.key_hash, entry.version, entry.offset, entry.position)


def decode_keys(data: bytes) -> tuple[list[AggregateKey], int]:
    """Whole keys, and the byte where an unfinished one begins (= length without one)."""
    found = []
    at = 0
    while at + 10 <= len(data):
        key_hash, length = _KEY_HEAD.unpack_from(data, at)
        if at + 10 + length > len(data):
            break
        found.append(AggregateKey(key_hash, data[at + 10 : at + 10 + length], at))
        at += 10 + length
    return found, at


def encode_key(key: bytes) -> bytes:
    """Record of a key of at most 65,535 bytes."""
    return _KEY_HEAD.pack(fnv1a64(key), len(key)) + key


def decode_snapshots(data: bytes) -> tuple[list[AggregateSnapshot], int]:
    """Whole snapshots in file order, and the byte where an unfinished one begins."""
    found = []
    at = 0
    while at + 2 <= len(data):
        (length,) = _U16.unpack_from(data, at)
        fixed = at + 2 + length
        if fixed + 12 > len(data):
            break
        version, size = _VERSION_LENGTH.unpack_from(data, fixed)
        end = fixed + 12 + size
        if end > len(data):
            break
        key, payload = data[at + 2 : fixed], data[fixed + 12 : end]
        found.append(AggregateSnapshot(key, version, payload, at, end - at))
        at = end
    return found, at


def encode_snapshot(key: bytes, version: int, payload: bytes) -> bytes:
    """One snapshot record."""
    return _U16.pack(len(key)) + key + _VERSION_LENGTH.pack(version, len(payload)) + payload
