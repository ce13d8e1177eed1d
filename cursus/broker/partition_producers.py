"""What one partition knows of its producers: what was accepted, and what is on the disk.

    accept     checks records against what was accepted, has them written, takes note
    settle     what the disk holds by now moves into the durable half
    durable    goes into the checkpoint: never ahead of the log, or a producer's retry
               would be a duplicate of nothing
    forget     producers that have sent nothing for long, in the file first

A batch costs what it changes, however many producers the partition knows: rules
are applied to a layer above the table, and what was written waits in the order of
its offsets until the high watermark has passed it.

Source: journal.md sections 6.2 and 6.3; broker.md section 8.2.
"""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Final

from cursus.formats.checkpoints import ProducerEntry
from cursus.formats.record import Record
from cursus.replay.producers import Idempotence, rejected
from cursus.storage.errors import WriteRefusedError

#: Nanoseconds of a clock that does not go back.
Clock = Callable[[], int]
#: Gives records their offsets, in order; raises, and then none has one.
Write = Callable[[list[Record]], range]

_NOTHING: Final[Mapping[str, ProducerEntry]] = {}


class PartitionProducers(Idempotence):
    """The producers of one life of a partition of ``topic``. Threads may share it.

    ``known`` is what stands in its log and checkpoint. Nobody waits for the disk with
    the lock held, but for a roll that an append meets and for room in a full queue.
    """

    def __init__(
        self, topic: str, clock: Clock, known: Mapping[str, ProducerEntry] = _NOTHING
    ) -> None:
        super().__init__(dict(known))
        self._topic = topic
        self._lock = RLock()
        self._clock = clock
        self._durable = dict(known)
        self._written: deque[tuple[int, str, ProducerEntry]] = deque()
        #: When each producer was last heard of; since the opening where it is missing.
        self._heard: dict[str, int] = {}
        self._opened = clock()

    def accept(self, records: Sequence[Record], write: Write, *, active: bool) -> range:
        """Give those of ``records`` that are no duplicates to ``write``; their offsets.

        ``active``: the topic is idempotent; a record with a sequence is checked in
        any case. Raises :class:`WriteRefusedError` with the code of the first rule
        that is broken, for all of them, and what ``write`` raises; neither advances
        anything.
        """
        with self._lock:
            above = Idempotence(ChainMap({}, self.state))
            due: list[Record] = []
            for record in records:
                name, epoch, sequence = producer_of(record)
                force = sequence > 0
                result = above.check(name, epoch, sequence, active=active, force=force)
                if rejected(result):
                    raise WriteRefusedError(result, path=self._topic)
                if result == "append":
                    above.appended(name, epoch, sequence, active=active, force=force)
                    due.append(record)
                elif name in self.state:
                    self._heard[name] = self._clock()
            offsets = write(due)
            # Of these only: a commit may have moved other producers meanwhile.
            for record in due:
                name, epoch, sequence = producer_of(record)
                self.appended(name, epoch, sequence, active=active, force=sequence > 0)
            self._note(due, offsets)
            return offsets

    def commit(self, records: Sequence[Record], write: Write) -> range:
        """Have records of a commit written; its own rules say that they are due.

        :attr:`state` is theirs to advance.
        """
        with self._lock:
            offsets = write(list(records))
            self._note(records, offsets)
            return offsets

    def _note(self, records: Sequence[Record], offsets: range) -> None:
        now = self._clock()
        for offset, record in zip(offsets, records, strict=True):
            name, epoch, sequence = producer_of(record)
            if name:
                self._written.append((offset, name, ProducerEntry(epoch, sequence)))
                self._heard[name] = now

    def settle(self, end: int) -> bool:
        """Everything below ``end`` is on the disk; True when that says more of a producer."""
        more = False
        with self._lock:
            while self._written and self._written[0][0] < end:
                _, name, entry = self._written.popleft()
                more |= self._raise(name, entry)
        return more

    def _raise(self, name: str, entry: ProducerEntry) -> bool:
        held = self._durable.get(name)
        if held is not None and (held.epoch, held.sequence) >= (entry.epoch, entry.sequence):
            return False
        self._durable[name] = entry
        return True

    def durable(self) -> dict[str, ProducerEntry]:
        """What the disk holds, as far as it was settled: a copy."""
        with self._lock:
            return dict(self._durable)

    # -- forgetting ----------------------------------------------------------------------

    def silent(self, since: int) -> set[str]:
        """Producers that were not heard of since that moment, and wait for no disk."""
        with self._lock:
            waiting = {name for _, name, _ in self._written}
            known = self.state.keys() | self._durable.keys()
            return {name for name in known - waiting if self._last_heard(name) < since}

    def _last_heard(self, name: str) -> int:
        return self._heard.get(name, self._opened)

    def forget(self, names: set[str], since: int, save: Callable[[], bool]) -> set[str] | None:
        """Forget ``names``, but those that are heard of meanwhile; who is forgotten.

        ``save`` writes the checkpoint, without the lock; where it cannot (False),
        nobody is forgotten, and this is ``None``. The file comes first: a producer that
        begins anew must not meet, after a crash, a higher sequence of its earlier life.
        """
        with self._lock:
            left_out = {name: self._durable.pop(name) for name in names if name in self._durable}
        gone: set[str] = set()
        saved = False
        try:
            saved = save()
        finally:
            with self._lock:
                if saved:
                    gone = names & self.silent(since)
                for name in gone:
                    self.state.pop(name, None)
                    self._heard.pop(name, None)
                for name in left_out.keys() - gone:
                    self._raise(name, left_out[name])
        return gone if saved else None


def producer_of(record: Record) -> tuple[str, int, int]:
    """Name, epoch and sequence of the producer of a record; the name is empty without one."""
    name = record.producer_id.decode("utf-8", "surrogateescape")
    return name, record.epoch, record.sequence
