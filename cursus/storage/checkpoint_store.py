"""The small files beside a log: high watermark and producer state of one partition.

Both are derived: a start finds the end of the log by itself, and reads producers
from it. They are replaced in one rename, at most every 250 ms while something
changed, and once more at the end. A write that fails leaves the file that was
there and a warning; nothing else depends on it.

The high watermark that is noted must be one that a crash cannot take back (the
durable end of the log): in ``__consumer_offsets`` a checkpoint above the log
proves a loss, and a start refuses it.

Safe for threads only as far as :meth:`PartitionCheckpoints.note_hwm` goes, which
sets one number; ``flush`` and ``flush_if_due`` need a lock of the partition.

The lifecycle marker is part of a truncation (``manifest_store``).

Source: journal.md sections 6.1 and 6.2; README.md decisions 11, 25, 29.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

from cursus import layout
from cursus.formats import checkpoints
from cursus.formats.checkpoints import ProducerEntry
from cursus.storage.durable import FileSystem
from cursus.storage.errors import reason

#: Shortest time between two writes of a checkpoint, in nanoseconds.
INTERVAL_NS: Final = 250_000_000

#: Nanoseconds of any clock that does not go back.
Clock = Callable[[], int]
#: Producer state as it should be written: entries without a sequence are left out.
Producers = Callable[[], Mapping[str, ProducerEntry]]


def write_hwm(files: FileSystem, log_dir: str, topic: str, partition: int, offset: int) -> None:
    """Replace ``partition_<p>.hwm``. Raises ``OSError``."""
    _replace(files, log_dir, topic, layout.hwm(partition), checkpoints.encode_hwm(offset))


def write_producers(
    files: FileSystem,
    log_dir: str,
    topic: str,
    partition: int,
    producers: Mapping[str, ProducerEntry],
) -> None:
    """Replace ``partition_<p>.producers`` (epoch and sequence form). Raises ``OSError``."""
    known = {name: item for name, item in producers.items() if name and item.sequence}
    data = checkpoints.encode_producers(known)
    _replace(files, log_dir, topic, layout.producers(partition), data)


def _replace(files: FileSystem, log_dir: str, topic: str, name: str, content: bytes) -> None:
    path = os.path.join(log_dir, topic, name)
    files.replace_file(path, layout.temporary(path), content)


class PartitionCheckpoints:
    """Both checkpoints of one partition while a broker runs.

    ``stored_hwm``: what the file says now, ``None`` when it is missing or no
    number. ``producers`` gives the state to write; without it none is written.
    """

    def __init__(
        self,
        files: FileSystem,
        log_dir: str,
        topic: str,
        partition: int,
        *,
        stored_hwm: int | None,
        hwm: int,
        producers: Producers | None = None,
        clock: Clock,
    ) -> None:
        self._files = files
        self._place = (log_dir, topic, partition)
        self._stored = stored_hwm
        self._hwm = hwm
        self._producers = producers
        self._producers_dirty = False
        self._clock = clock
        self._not_before = clock()
        #: Why the last write failed; ``None`` when it did not.
        self.warning: str | None = None

    @property
    def dirty(self) -> bool:
        """Is there something to write?"""
        return self._stored != self._hwm or self._producers_dirty

    def note_hwm(self, offset: int) -> None:
        """Everything below ``offset`` is on the disk. Going down is ignored."""
        self._hwm = max(self._hwm, offset)

    def note_producers(self) -> None:
        """Producer state has changed."""
        self._producers_dirty = self._producers is not None

    def flush_if_due(self) -> bool:
        """Write what changed, when 250 ms have passed since the last write."""
        return self.dirty and self._clock() >= self._not_before and self.flush()

    def flush(self) -> bool:
        """Write what changed; False when nothing did, or when it could not be written."""
        if not self.dirty:
            return False
        self._not_before = self._clock() + INTERVAL_NS
        try:
            hwm = self._hwm
            if self._stored != hwm:
                write_hwm(self._files, *self._place, hwm)
                self._stored = hwm
            self._write_producers()
        except OSError as error:
            self.warning = f"a checkpoint could not be written: {reason(error)}"
            return False
        self.warning = None
        return True

    def save_producers(self) -> bool:
        """Write the producers if they changed; False when they could not be written.

        Before records leave the log: afterwards nothing else knows their producers.
        """
        try:
            self._write_producers()
        except OSError as error:
            self.warning = f"a checkpoint could not be written: {reason(error)}"
            return False
        return True

    def _write_producers(self) -> None:
        if not self._producers_dirty or self._producers is None:
            return
        self._producers_dirty = False
        try:
            write_producers(self._files, *self._place, self._producers())
        except BaseException:
            self._producers_dirty = True
            raise
