"""A log directory of any size, made on the spot: the same bytes every time.

Frames are patched, not encoded one by one: sixteen records of different lengths
are a block, and a block is copied as often as it is wanted, with offsets,
sequences and keys written over. Twenty million records take a minute.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cursus import layout
from cursus.formats import consumer_metadata, record, timestamps, topic_manifest

BLOCK: Final = 16
#: Bytes of an index entry, and of log between two of them.
INDEX_INTERVAL: Final = 4096
_KEY: Final = b"customer-0000000"
_OFFSET, _SEQUENCE = 0x1122334455667788, 0x2233445566778899


@dataclass(frozen=True)
class Shape:
    """What is made. ``segment_records``: of each full segment."""

    records: int
    partitions: int = 4
    segment_records: int = 500_000
    payload: int = 96
    producers: int = 4


def make(log_dir: Path, shape: Shape, seed: int = 1) -> None:
    """Write the directory."""
    log_dir.mkdir(parents=True)
    definitions = [topic_manifest.TopicDefinition("events", 1, 1, shape.partitions, 1)]
    (log_dir / layout.MANIFEST).write_bytes(topic_manifest.encode(definitions))
    (log_dir / "events").mkdir()
    each = shape.records // shape.partitions
    for partition in range(shape.partitions):
        append(log_dir, partition, 0, each, shape, seed)


def append(
    log_dir: Path, partition: int, start: int, count: int, shape: Shape, seed: int = 1
) -> None:
    """Write records from offset ``start`` on, rolling as a broker does."""
    block = _Block(partition, shape, seed)
    end = start + count
    while start < end:
        base = start - start % shape.segment_records
        stop = min(end, base + shape.segment_records)
        folder = log_dir / "events"
        with (
            (folder / layout.segment_log(partition, base)).open("ab") as log,
            (folder / layout.segment_index(partition, base)).open("ab") as index,
        ):
            while start < stop:
                piece = min(stop, start + 65_536)
                at = log.tell()
                data, positions = block.frames(start, piece)
                log.write(data)
                index.write(_entries(positions + at, start))
                start = piece


def _entries(positions: NDArray[np.int64], first: int) -> bytes:
    """Index entries: the first record in each interval of bytes, but for the first of all."""
    slots = positions // INDEX_INTERVAL
    chosen = np.flatnonzero(np.append(False, slots[1:] != slots[:-1]))
    pairs = np.empty((len(chosen), 2), ">u8")
    pairs[:, 0] = first + chosen
    pairs[:, 1] = positions[chosen]
    return pairs.tobytes()


class _Block:
    """Sixteen frames, and where in them the numbers stand."""

    def __init__(self, partition: int, shape: Shape, seed: int) -> None:
        chance = random.Random(f"{seed} {partition}")
        producer = b"app-%d" % (partition % shape.producers)
        frames = [
            record.encode_frame(
                record.Record(
                    b"events",
                    partition,
                    _OFFSET,
                    producer,
                    _SEQUENCE,
                    1,
                    chance.randbytes(shape.payload + chance.randrange(-32, 33)),
                    event_type=b"order" if at % 4 else b"payment",
                    key=_KEY,
                )
            )
            for at in range(BLOCK)
        ]
        self.data = np.frombuffer(b"".join(frames), np.uint8)
        lengths = [len(frame) for frame in frames]
        self.starts = np.cumsum([0, *lengths[:-1]])
        self.offsets = self._places(frames, _OFFSET.to_bytes(8, "big"))
        self.sequences = self._places(frames, _SEQUENCE.to_bytes(8, "big"))
        self.keys = self._places(frames, _KEY) + len(_KEY) - 7

    def _places(self, frames: list[bytes], what: bytes) -> NDArray[np.int64]:
        return np.array([frame.index(what) for frame in frames]) + self.starts

    def frames(self, start: int, stop: int) -> tuple[bytes, NDArray[np.int64]]:
        """Bytes of the records ``start`` … ``stop``, and the position of each in them."""
        first = start - start % BLOCK
        blocks = -(-(stop - first) // BLOCK)
        rows = np.tile(self.data, (blocks, 1))
        numbers = np.arange(first, first + blocks * BLOCK, dtype=">u8").reshape(blocks, BLOCK)
        for at in range(BLOCK):
            own = numbers[:, at]
            _write(rows, int(self.offsets[at]), own)
            _write(rows, int(self.sequences[at]), (own + 1).astype(">u8"))
            digits = (own.astype(np.int64) * 7919) % 100_000
            for place in range(7):
                rows[:, int(self.keys[at]) + 6 - place] = 48 + digits // 10**place % 10
        size = len(self.data)
        positions = (np.arange(blocks)[:, None] * size + self.starts).ravel()
        ends = np.append(positions[1:], blocks * size)
        begin, end = int(positions[start - first]), int(ends[stop - first - 1])
        kept = positions[start - first : stop - first] - begin
        return rows.ravel()[begin:end].tobytes(), kept


def _write(rows: NDArray[np.uint8], at: int, numbers: NDArray[np.uint64]) -> None:
    rows[:, at : at + 8] = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, 8)


def make_consumers(log_dir: Path, groups: int, snapshots: int) -> None:
    """Groups with a registration and ``snapshots`` revisions of their offsets each."""
    data = (log_dir / layout.MANIFEST).read_bytes()
    held = topic_manifest.decode(data).definitions
    internal = topic_manifest.TopicDefinition(
        layout.INTERNAL_TOPIC, 1, 1, 4, 1, policy=topic_manifest.INTERNAL_POLICY
    )
    (log_dir / layout.MANIFEST).write_bytes(topic_manifest.encode([*held, internal]))
    folder = log_dir / layout.INTERNAL_TOPIC
    folder.mkdir()
    logs: list[list[bytes]] = [[], [], [], []]
    for revision in range(snapshots + 1):
        for group in range(groups):
            item = _consumer_record(f"group-{group}", revision)
            key = item.key().encode()
            log = logs[partition := consumer_metadata.partition_of(key, 4)]
            body = record.Record(
                layout.INTERNAL_TOPIC.encode(),
                partition,
                len(log),
                payload=consumer_metadata.encode(item),
                key=key,
            )
            log.append(record.encode_frame(body))
    for partition, log in enumerate(logs):
        (folder / layout.segment_log(partition, 0)).write_bytes(b"".join(log))


def _consumer_record(group: str, revision: int) -> consumer_metadata.ConsumerRecord:
    moment = timestamps.from_unix_ns(1_790_000_000 * 10**9 + revision)
    if not revision:
        return consumer_metadata.ConsumerRecord(
            consumer_metadata.REGISTRATION, group, 1, "events", 4, timestamp=moment
        )
    offsets = tuple(consumer_metadata.OffsetItem(at, 10 * revision) for at in range(4))
    return consumer_metadata.ConsumerRecord(
        consumer_metadata.SNAPSHOT, group, 1, "events", 0, revision, offsets, timestamp=moment
    )
