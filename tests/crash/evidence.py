"""A tree in memory as evidence, judged by the same code as a real directory.

Names are classified by ``cursus.layout``, entries and what their names say come
from ``cursus.evidence.walk``, segments are scanned by the one scan. Only the
system calls are missing: no entry is unreadable here and nothing changes while
it is read. ``test_memory_file_system.py`` compares the plan over a tree in
memory with the plan over the same tree on disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Self

from crash.memory import ROOT, Leaf, Tree
from cursus import layout
from cursus.evidence.segment_scan import scan_segment
from cursus.evidence.walk import entry_at, told_by_names, unreadable
from cursus.findings import Finding
from cursus.formats.offset_index import Prefix
from cursus.replay.interfaces import (
    Entry,
    RecordBatch,
    SegmentRef,
    SegmentScan,
    UnreadableError,
)
from cursus.storage.durable import DIRECTORY_MODE


@lru_cache(maxsize=65536)
def _name(path: str, directory: bool) -> layout.Name:
    return layout.classify(tuple(path.split("/")), directory=directory)


class Bytes:
    """Bytes as an open file."""

    __slots__ = ("_data", "size")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def pread(self, length: int, position: int) -> bytes:
        return self._data[position : position + length]

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class MemoryEvidence:
    """A tree in memory (fits ``cursus.replay.interfaces.Evidence``)."""

    def __init__(self, tree: Tree, *, log_dir: str = ROOT, in_use: bool | None = False) -> None:
        self.log_dir = log_dir
        self.in_use = in_use
        self._tree = tree
        self._by_path: dict[str, Entry] = {}
        self._children: dict[str, list[Entry]] = {"": []}
        for path in sorted(tree, key=os.fsencode):
            leaf = tree[path]
            self._by_path[path] = entry = entry_at(
                path,
                _name(path, leaf is None),
                type="directory" if leaf is None else "file",
                size=0 if leaf is None else len(leaf.data),
                mtime_ns=0 if leaf is None else leaf.mtime_ns,
                ctime_ns=0,
                mode=DIRECTORY_MODE if leaf is None else leaf.mode,
            )
            if leaf is None:
                self._children.setdefault(path, [])
            self._children[path.rpartition("/")[0]].append(entry)
        self.entries: Sequence[Entry] = list(self._by_path.values())
        self.walk_findings: Sequence[Finding] = tuple(told_by_names(self._by_path, in_use))

    def get(self, path: str) -> Entry | None:
        return self._by_path.get(path)

    def children(self, directory: str) -> Sequence[Entry]:
        return self._children.get(directory, [])

    def listed(self, directory: str) -> bool:
        return directory in self._children

    def open(self, path: str) -> Bytes:
        leaf = self._tree.get(path)
        if not isinstance(leaf, Leaf):
            code = errno.ENOENT if path not in self._tree else errno.EINVAL
            error = OSError(code, os.strerror(code))
            raise UnreadableError(str(error), unreadable(path, error))
        return Bytes(leaf.data)

    def read(self, path: str, limit: int) -> bytes:
        return self.open(path).pread(limit + 1, 0)

    def scan(
        self,
        segment: SegmentRef,
        visit: Callable[[RecordBatch], None] | None = None,
        index: Prefix | None = None,
    ) -> SegmentScan:
        return scan_segment(self.open(segment.path), segment, visit, index)

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
