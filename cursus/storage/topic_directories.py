"""The directory of a topic: made with empty logs, emptied, removed.

The registry (``manifest_store``) decides when; here is how, so that a crash
between any two steps leaves something that a start judges as documented::

    make       directory, log_dir synced, empty logs, directory synced
    empty      logs, synced, everything else, synced
    intent     .cursus_lifecycle_epoch.tmp: written, synced, directory synced

A directory without logs is no topic to a start. No link is followed.

Source: manifest.md sections 1, 4.1, 4.3, 5.1 to 5.4; README.md decision 33.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cursus import layout
from cursus.findings import FormatError
from cursus.formats import checkpoints
from cursus.layout import FileKind
from cursus.replay.topics import is_leftover
from cursus.storage.durable import FileSystem, FileType
from cursus.storage.errors import StoreError, reason


class TopicDirectories:
    """The directories of topics below ``log_dir``. Every method raises ``OSError``."""

    def __init__(self, files: FileSystem, log_dir: str) -> None:
        self._files = files
        self._log_dir = log_dir

    def sync(self, name: str) -> None:
        """Make the names in the directory of a topic durable."""
        self._files.sync_directory(self._path(name))

    # -- making ------------------------------------------------------------------------

    @contextmanager
    def made(self, name: str, partitions: range, *, new: bool) -> Iterator[None]:
        """Empty logs for new partitions, durable with their names, inside the block.

        ``new``: the topic is not declared yet. When the block fails, what was made
        for it, and nothing else, is taken back. Raises :class:`StoreError`
        ``topic_storage_without_definition`` when something of somebody stands
        there, ``topic_storage_write_failed`` for an error of the system.
        """
        made: list[str] = []
        try:
            self._make(name, partitions, made, new=new)
            yield
        except (OSError, StoreError, FormatError) as error:
            self._take_back(made)
            if not isinstance(error, OSError):
                raise
            raise StoreError(
                "topic_storage_write_failed",
                f"the storage of the topic could not be made: {reason(error)}",
                path=name,
            ) from error

    def _make(self, name: str, partitions: range, made: list[str], *, new: bool) -> None:
        if not partitions:
            return
        directory = self._path(name)
        status = self._files.status(directory)
        if status is None:
            self._files.make_directory(directory)
            made.append(directory)
        elif status.type != "directory":
            raise StoreError(
                "topic_storage_without_definition",
                f'a {status.type} stands where the directory of topic "{name}" belongs',
                path=name,
            )
        else:
            self._clear_leftovers(name, None if new else partitions)
        # Also for one that stood there: whoever made it may have been killed before this.
        self._files.sync_directory(self._log_dir)
        for partition in partitions:
            path = os.path.join(directory, layout.segment_log(partition, 0))
            self._files.create(path).close()
            made.append(path)
        self._files.sync_directory(directory)

    def _take_back(self, made: list[str]) -> None:
        for path in reversed(made):
            with suppress(OSError):
                self._remove(path)
        for directory in dict.fromkeys(os.path.dirname(path) for path in made):
            with suppress(OSError):
                self._files.sync_directory(directory)

    def _clear_leftovers(self, name: str, partitions: range | None) -> None:
        """Side files that an unfinished deletion left, of these partitions (``None``: of all).

        Only what is derived, temporary or a lock is removed, and the marker of a
        life that nobody declares; anything else is somebody's data, and refuses.
        """
        directory = self._path(name)
        removable = []
        for entry in self._files.list_directory(directory):
            path = os.path.join(directory, entry)
            status = self._files.status(path)
            kind = status.type if status is not None else "other"
            told = layout.classify((name, entry), directory=kind == "directory")
            if partitions is not None and told.partition not in partitions:
                continue
            if not self._is_leftover(name, entry, told.kind, kind):
                raise StoreError(
                    "topic_storage_without_definition",
                    f'"{name}/{entry}" stands there already, and no topic declares it',
                    path=layout.topic_file(name, entry),
                )
            removable.append(path)
        for path in removable:
            self._remove(path)

    def _is_leftover(self, name: str, entry: str, kind: FileKind, found: FileType) -> bool:
        if kind is not FileKind.AGGREGATE_DIRECTORY:
            return is_leftover(kind, found)
        inside = self._files.list_directory(os.path.join(self._path(name), entry))
        kinds = (layout.classify((name, entry, file), directory=False).kind for file in inside)
        return is_leftover(kind, found, kinds)

    # -- removing ----------------------------------------------------------------------

    def remove(self, name: str) -> bool:
        """Remove the directory of a topic durably; False when it is not a directory."""
        directory = self._path(name)
        status = self._files.status(directory)
        if status is None:
            return True
        if status.type != "directory":
            return False  # not ours: a start refuses such a thing, nobody follows it
        self._empty(directory)
        self._files.remove_directory(directory)
        self._files.sync_directory(self._log_dir)
        return True

    def _empty(self, directory: str, *, keep: str | None = None) -> None:
        """Remove what stands in a directory, logs first, and sync it.

        The time in which a crash leaves logs that nobody declares ends with the
        first sync.
        """
        entries = [name for name in self._files.list_directory(directory) if name != keep]
        logs = [name for name in entries if layout.is_log_name(name)]
        for name in logs:
            self._remove(os.path.join(directory, name))
        if logs:
            self._files.sync_directory(directory)
        for name in entries:
            if not layout.is_log_name(name):
                self._remove(os.path.join(directory, name))
        if len(entries) > len(logs):
            self._files.sync_directory(directory)

    def _remove(self, path: str) -> None:
        """Remove one entry with everything below it."""
        pending = [path]
        while pending:
            last = pending[-1]
            status = self._files.status(last)
            if status is None:
                pending.pop()
            elif status.type != "directory":
                self._files.unlink(last)
                pending.pop()
            elif inside := self._files.list_directory(last):
                pending.extend(os.path.join(last, name) for name in inside)
            else:
                self._files.remove_directory(last)
                pending.pop()

    # -- truncation --------------------------------------------------------------------

    def write_intent(self, name: str, epoch: int) -> None:
        """Say durably that the truncation to ``epoch`` may be decided next."""
        directory = self._path(name)
        if self._files.status(directory) is None:
            self._files.make_directory(directory)
            self._files.sync_directory(self._log_dir)
        path = self._intent(name)
        if self._files.status(path) is not None:
            self._files.unlink(path)
        with self._files.create(path) as file:
            file.append(checkpoints.encode_lifecycle_epoch(epoch))
            file.fsync()
        self._files.sync_directory(directory)

    def forget_intent(self, name: str) -> None:
        """An intent without a manifest decides nothing; it should not stand there either."""
        path = self._intent(name)
        with suppress(OSError):
            if self._files.status(path) is not None:
                self._files.unlink(path)

    def empty_for(self, name: str, epoch: int, partitions: int) -> None:
        """Empty a topic whose truncation to ``epoch`` is decided, and make its logs anew.

        The intent stays until :meth:`seal`, so that a start goes on with it.
        """
        if not self._has_intent(name, epoch):
            # An earlier attempt renamed it and could not sync that, or failed here: begin anew.
            self.write_intent(name, epoch)
        directory = self._path(name)
        self._empty(directory, keep=layout.LIFECYCLE_EPOCH_TEMP)
        # The old logs are gone for good before new ones of the same names appear.
        for partition in range(partitions):
            path = os.path.join(directory, layout.segment_log(partition, 0))
            self._files.create(path).close()
        self._files.sync_directory(directory)

    def seal(self, name: str) -> None:
        """The truncation is complete: the intent becomes the lifecycle marker."""
        marker = os.path.join(self._path(name), layout.LIFECYCLE_EPOCH)
        self._files.rename(self._intent(name), marker)
        self._files.sync_directory(self._path(name))

    def _has_intent(self, name: str, epoch: int) -> bool:
        path = self._intent(name)
        if self._files.status(path) is None:
            return False
        wanted = checkpoints.encode_lifecycle_epoch(epoch)
        with self._files.open_read(path) as file:
            return file.pread(len(wanted) + 1, 0) == wanted

    def _intent(self, name: str) -> str:
        return os.path.join(self._path(name), layout.LIFECYCLE_EPOCH_TEMP)

    def _path(self, name: str) -> str:
        return os.path.join(self._log_dir, name)
