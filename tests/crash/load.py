"""A store under load, in a process of its own, which somebody is going to kill.

    python -m crash.load LOG_DIR SEED [steady]

Several threads publish, queue, commit, append events, decide transactions, create
and delete topics, grow them; retention, compaction and checkpoints are the store's
own background work, at intervals of milliseconds. Each line on stdout is a JSON
array: what is about to happen where that takes something away (``will``), and
what was acknowledged (``did``), written in one ``write`` *after* the engine's
answer. A line that was written reaches whoever holds the other end of the pipe,
whatever becomes of us. With ``steady`` no topic comes or goes, and maintenance
comes as seldom as it does with a broker, in proportion. Background work that fails
is a failure of the load.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cursus.broker.background import Background, BackgroundSettings
from cursus.broker.open_storage import OpenStorage
from cursus.broker.runtime import Runtime, Settings
from cursus.formats import timestamps
from cursus.formats import transaction_journal as tj
from cursus.formats.record import Record
from cursus.storage.errors import StoreError
from cursus.storage.log_settings import LogSettings

SETTINGS = Settings(
    log=LogSettings(
        log_segment_bytes=16_384,
        log_index_size_bytes=4096,
        log_index_interval_bytes=1024,
        log_retention_hours=-1,
        log_retention_bytes=60_000,
        log_min_cleanable_dirty_ratio=0.05,
        log_segment_roll_ms=400,
        linger_ms=2,
        disk_flush_interval_ms=20,
    ),
    background=BackgroundSettings(
        log_retention_check_interval_ms=20, log_compaction_check_interval_ms=30
    ),
)
#: As seldom as with a broker, in proportion, so that whoever reads beside it comes up.
STEADY = replace(
    SETTINGS,
    log=replace(SETTINGS.log, log_segment_roll_ms=0),
    background=BackgroundSettings(
        log_retention_check_interval_ms=4000, log_compaction_check_interval_ms=4000
    ),
)
TOPICS: dict[str, dict[str, Any]] = {
    "orders": {"partitions": 2, "idempotent": True},
    "logs": {"partitions": 1},
    "prices": {"partitions": 1, "cleanup_policy": "compact"},
    "carts": {"partitions": 1, "event_sourcing": True},
    "queue": {"partitions": 1, "idempotent": True},
}
GROUPS = ("billing", "mailer", "packing")


def say(*words: object) -> None:
    """One line, in one write: it is there as a whole, or not at all."""
    os.write(1, (json.dumps(words) + "\n").encode())


class Load:
    """The threads of one round. ``number`` tells the rounds apart."""

    def __init__(self, storage: OpenStorage, background: Background, number: int) -> None:
        self.storage = storage
        self.background = background
        self.number = number

    def orders(self, rng: random.Random) -> None:
        """An idempotent producer of its own for each partition; sequences go on after a start."""
        partition = rng.randrange(2)
        name = f"desk-{partition}"
        if rng.random() < 0.02:  # whoever is forgotten begins anew, after a kill too
            self.storage.forget_producers("orders", partition, 0)
        states = self.storage.producers["orders", partition].state
        first = states[name].sequence + 1 if name in states else 1
        records = [
            Record(
                payload=f"{self.number}:{first + n}:".encode() + b"x" * rng.randrange(400),
                producer_id=name.encode(),
                sequence=first + n,
            )
            for n in range(rng.randint(1, 5))
        ]
        self._publish("orders", partition, records)

    def logs(self, rng: random.Random) -> None:
        records = [
            Record(payload=f"{self.number}.{rng.randrange(10**9)}".encode() + b"y" * 120)
            for _ in range(rng.randint(1, 20))
        ]
        self._publish("logs", 0, records)

    def queue(self, rng: random.Random) -> None:
        """Queued records: they count when the high watermark has passed them."""
        log, states = self.storage.partition("queue", 0), self.storage.producers["queue", 0].state
        first = states["till"].sequence + 1 if "till" in states else 1
        records = [
            Record(
                payload=f"{self.number}:{first + n}:".encode() + b"q" * rng.randrange(200),
                producer_id=b"till",
                sequence=first + n,
            )
            for n in range(rng.randint(1, 60))
        ]
        offsets = self.storage.enqueue("queue", 0, records)
        while log.hwm < offsets.stop and log.writable:
            time.sleep(0.002)
        say(
            "did", "publish", "queue", 0, offsets.start, [["", r.payload.decode()] for r in records]
        )

    def prices(self, rng: random.Random) -> None:
        key = f"item-{rng.randrange(12)}"
        self._publish(
            "prices", 0, [Record(key=key.encode(), payload=os.urandom(40).hex().encode())]
        )

    def _publish(self, topic: str, partition: int, records: list[Record]) -> None:
        offsets = self.storage.publish(topic, partition, records)
        found = [[record.key.decode(), record.payload.decode()] for record in records]
        say("did", "publish", topic, partition, offsets.start, found)

    def carts(self, rng: random.Random) -> None:
        key = f"cart-{rng.randrange(5)}".encode()
        version = self.storage.aggregates("carts", 0).version(key) + 1
        record = Record(
            key=key,
            payload=f"{self.number}-{version}".encode(),
            event_type=b"changed",
            schema_version=1,
            aggregate_version=version,
        )
        offset = self.storage.append_event("carts", 0, record)
        say("did", "publish", "carts", 0, offset, [[key.decode(), record.payload.decode()]])
        say("did", "event", key.decode(), version)
        if rng.random() < 0.2:
            payload = os.urandom(rng.randint(1, 200))
            say("will", "snapshot", key.decode(), version, payload.hex())
            self.storage.save_aggregate_snapshot("carts", 0, key, version, payload)
            say("did", "snapshot", key.decode(), version, payload.hex())

    def commits(self, rng: random.Random) -> None:
        name = rng.choice(GROUPS)
        group = self.storage.groups.get(name)
        if group is None:
            self.storage.register_group(name, "orders", 2)
            say("did", "register", name, self.storage.group_epoch(name))
            return
        if rng.random() < 0.01:
            say("will", "unregister", name)
            self.storage.delete_group(name)
            say("did", "unregister", name, self.storage.group_epoch(name))
            return
        partition = rng.randrange(2)
        offset = group.offsets.get("orders", {}).get(partition, 0) + rng.randrange(1, 4)
        epoch = group.epoch
        self.storage.commit_offsets(name, "orders", {partition: offset})
        say("did", "commit", name, epoch, partition, offset)

    def transactions(self, rng: random.Random) -> None:
        """Stage a record, decide, carry out: what is decided has to be there after a kill."""
        name = f"pay-{rng.randrange(3)}"
        known = self.storage.transactions.get(name)
        epoch = known.epoch + 1 if known is not None else 0
        revision = known.revision if known is not None else 0
        message = {
            "Topic": "orders",
            "Partition": rng.randrange(2),
            "Message": tj.message(
                ProducerID=f"txn-{name}",
                SeqNum=1,
                Epoch=epoch,
                Payload=f"{name}@{epoch}",
                TransactionalID=name,
                TransactionState="open",
            ),
        }
        moment = timestamps.parse("2026-09-01T00:00:00Z") + epoch * 10**9
        values: dict[str, Any] = {
            "id": name,
            "producer": f"txn-{name}",
            "epoch": epoch,
            "messages": [message],
            "created_at": moment,
            "updated_at": moment,
        }
        self.storage.journal_append({**values, "state": "open", "revision": revision + 1})
        self.storage.journal_append({**values, "state": "committing", "revision": revision + 2})
        say("did", "decide", name, epoch, message["Partition"])
        self.storage.finish_transaction(name)

    def topics(self, rng: random.Random) -> None:
        name = f"churn-{rng.randrange(3)}"
        known = self.storage.topics.get(name)
        if known is None:
            self.storage.create_topic(name, {"partitions": 1})
            self.storage.publish(name, 0, [Record(payload=b"first")])
            say("did", "create", name)
        elif known.partitions < 3 and rng.random() < 0.3:
            self.storage.create_topic(name, {"partitions": known.partitions + 1})
        elif rng.random() < 0.5:
            say("will", "delete", name)
            self.storage.truncate_topic(name, known.revision)
        else:
            say("will", "delete", name)
            self.storage.delete_topic(name)

    def maintenance(self, rng: random.Random) -> None:
        """What no clock does: the journal. And what the clock does, told."""
        threading.Event().wait(0.02 + 0.2 * rng.random())
        self.storage.compact_journal()
        for failure in self.background.failures.values():
            raise RuntimeError(f"background work failed: {failure}")
        say("did", "background", {f"{a} {b}": n for (a, b), n in self.background.counts.items()})


def main() -> int:
    log_dir, seed = sys.argv[1], int(sys.argv[2])
    steady = "steady" in sys.argv[3:]
    runtime = Runtime.start(log_dir, STEADY if steady else SETTINGS)
    if runtime.storage is None or runtime.background is None:
        assert runtime.diagnostics is not None
        say("refused", runtime.diagnostics.code, runtime.diagnostics.path)
        return 5
    for name, given in TOPICS.items():
        if name not in runtime.storage.topics:
            runtime.storage.create_topic(name, given)
            say("did", "create", name)
    say("ready")
    load = Load(runtime.storage, runtime.background, seed)
    failed = threading.Event()

    def for_ever(act: Callable[[random.Random], None], number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        while not failed.is_set():
            if steady:  # whoever reads beside us shall come up, on a slow machine too
                time.sleep(0.01)
            try:
                act(rng)
            except StoreError as error:
                if error.code not in {"active_readers", "topic_lifecycle_in_progress"}:
                    say("failed", act.__name__, error.code, str(error))
                    failed.set()
            except BaseException as error:
                say("failed", act.__name__, type(error).__name__, repr(error))
                failed.set()

    acts = [load.orders, load.logs, load.prices, load.carts, load.commits, load.transactions]
    acts += [load.queue, load.maintenance]
    if not steady:
        acts.append(load.topics)
    threads = [
        threading.Thread(target=for_ever, args=(act, number), daemon=True)
        for number, act in enumerate(acts)
    ]
    for thread in threads:
        thread.start()
    failed.wait()
    return 1


if __name__ == "__main__":
    sys.exit(main())
