"""The workloads that are crashed into, one for each part of the engine.

They are small, so that every moment can be visited, and shaped so that the
interesting things happen: segments of 600 bytes roll, groups come back under a
higher epoch, the fiftieth group makes the internal topic grow, a compaction has
superseded records to drop, a journal reaches its threshold, a commit is cut off
between its decision and its last frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from crash.operations import (
    AppendBehindQueue,
    AppendEvents,
    Checkpoint,
    Commit,
    Compact,
    CompactJournal,
    Create,
    Delete,
    DropTail,
    FinishTransaction,
    FlushQueued,
    ForgetProducers,
    Journal,
    Operation,
    Publish,
    PublishUnderCheckpoint,
    Register,
    Retain,
    SaveSnapshot,
    Truncate,
    Unregister,
    events,
    records,
)
from crash.recording import NOON, SEGMENT_BYTES, Workload
from crash.world import World
from cursus.formats import timestamps
from cursus.formats import transaction_journal as tj
from cursus.formats.record import Record
from cursus.layout import INTERNAL_TOPIC

ORDERS: Final = Create("orders", {"partitions": 2})
HOUR: Final = 3600 * 10**9


def publish(topic: str, partition: int, *payloads: str, **more: Any) -> Publish:
    return Publish(topic, partition, records(*payloads, **more), SEGMENT_BYTES)


def produce() -> Workload:
    """Batches that roll, one that is larger than a segment, an idempotent producer."""
    long = "x" * 90
    return Workload(
        "produce",
        (
            Create("orders", {"partitions": 2, "idempotent": True}),
            publish("orders", 0, "a", "b", "c"),
            publish("orders", 0, long + "1", long + "2", producer="p", first=1),
            publish("orders", 1, "other partition"),
            publish("orders", 0, *(long + str(n) for n in range(3)), producer="p", first=3),
            Checkpoint(),
            publish("orders", 0, "y" * 700),
            publish("orders", 0, long + "after", producer="p", first=6),
            publish("orders", 0, *(f"z{n}" for n in range(9))),
            Checkpoint(),
        ),
    )


def checkpoints() -> Workload:
    """Producers whose state is written while their records are on the way to the disk."""

    def under(partition: int, *payloads: str, **more: Any) -> Operation:
        return PublishUnderCheckpoint(
            "orders", partition, records(*payloads, **more), SEGMENT_BYTES
        )

    return Workload(
        "checkpoints",
        (
            Create("orders", {"partitions": 2, "idempotent": True}),
            under(0, "a", producer="p", first=1),
            publish("orders", 0, "b", producer="p", first=2),
            under(0, "c" * 90, "d" * 90, producer="p", first=3),
            under(0, "e" * 500, producer="q", first=1),
            under(1, "f"),
            Checkpoint(),
        ),
    )


def groups() -> Workload:
    """A group's life: registered, commits, deleted, registered again under a higher epoch."""
    return Workload(
        "groups",
        (
            ORDERS,
            Register("g", "orders", 2),
            Commit("g", "orders", {0: 3}),
            Commit("g", "orders", {0: 5, 1: 2}),
            Commit("g", "orders", {1: 2}),
            Unregister("g"),
            Register("h", "orders", 2),
            Register("g", "orders", 2),
            Commit("g", "orders", {1: 1}),
            Checkpoint(),
            *(Commit("h", "orders", {0: n}) for n in range(1, 8)),
            Unregister("h"),
        ),
    )


def growth() -> Workload:
    """The fiftieth group makes the internal topic grow; keys move to other partitions."""
    many = [Register(f"group-{n}", "orders", 2) for n in range(48)]
    return Workload(
        "growth",
        (
            Register("the-49th", "orders", 2),
            Register("the-50th", "orders", 2),
            Commit("group-7", "orders", {0: 9}),
            Unregister("group-8"),
            Register("group-8", "orders", 2),
        ),
        before=(ORDERS, *many, Commit("group-7", "orders", {0: 1})),
    )


def topics() -> Workload:
    """Create, grow, delete, create again; with groups that a deletion takes along."""
    return Workload(
        "topics",
        (
            ORDERS,
            publish("orders", 0, "a", "b"),
            Register("g", "orders", 2),
            Commit("g", "orders", {0: 1}),
            Create("orders", {"partitions": 3}),
            publish("orders", 2, "third"),
            Create("other", {"partitions": 1, "cleanup_policy": "compact"}),
            Register("k", "orders", 3),
            Delete("orders"),
            Create("orders", {"partitions": 1}),
            publish("orders", 0, "a new life"),
            Register("g", "orders", 1),
            Delete("other"),
        ),
    )


def truncation() -> Workload:
    """A topic is emptied twice; the group that held offsets in it is gone."""
    return Workload(
        "truncation",
        (
            ORDERS,
            publish("orders", 0, *(f"record {n}" for n in range(6))),
            publish("orders", 0, *(f"record {n}" for n in range(6))),
            publish("orders", 1, "x"),
            Register("g", "orders", 2),
            Commit("g", "orders", {0: 4}),
            Checkpoint(),
            Truncate("orders"),
            publish("orders", 0, "after"),
            Register("g", "orders", 2),
            Commit("g", "orders", {0: 1}),
            Truncate("orders"),
            publish("orders", 1, "after the second"),
        ),
    )


def retention() -> Workload:
    """Segments past their age go, oldest first; new records come while they do."""
    fill = [
        publish("orders", 0, *(f"{batch}.{n} " + "x" * 40 for n in range(4))) for batch in range(5)
    ]
    return Workload(
        "retention",
        (
            ORDERS,
            *fill,
            Retain("orders", 0, now_ns=NOON + HOUR // 2, expired=False),
            Retain("orders", 0, now_ns=NOON + 3 * HOUR),
            publish("orders", 0, "after"),
            Checkpoint(),
            *fill[:2],
            Retain("orders", 0, now_ns=NOON + 9 * HOUR),
        ),
    )


def compaction() -> Workload:
    """Keys that are written again and again; producers whose last record must stay."""

    def round_(number: int) -> list[Operation]:
        return [
            publish("prices", 0, f"{number} " + "p" * 30, key=f"k{key}") for key in range(4)
        ] + [publish("prices", 0, f"last of {number}", key="k1", producer=f"w{number}")]

    return Workload(
        "compaction",
        (
            Create("prices", {"partitions": 1, "cleanup_policy": "compact"}),
            *round_(0),
            *round_(1),
            publish("prices", 0, "no key"),
            *round_(2),
            Compact("prices", 0),
            *round_(3),
            *round_(4),
            Compact("prices", 0),
            publish("prices", 0, "after", key="k0"),
        ),
    )


def internal_compaction() -> Workload:
    """Commits fill ``__consumer_offsets``; compaction drops all but the last of each."""
    commits = [Commit("g", "orders", {0: n, 1: n}) for n in range(1, 14)]
    partition = 3
    return Workload(
        "internal-compaction",
        (
            *commits[6:],
            *(Compact(INTERNAL_TOPIC, p) for p in range(4)),
            Commit("g", "orders", {0: 20, 1: 20}),
            Unregister("g"),
            Register("g", "orders", 2),
            *(Commit("g", "orders", {0: n}) for n in range(1, 6)),
            Compact(INTERNAL_TOPIC, partition),
        ),
        before=(ORDERS, Register("g", "orders", 2), *commits[:6]),
    )


def state_of(name: str, state: str, epoch: int, revision: int, **more: Any) -> dict[str, Any]:
    moment = timestamps.from_unix_ns(NOON + revision * 10**9)
    return {
        "id": name,
        "producer": f"txn-{name}",
        "epoch": epoch,
        "revision": revision,
        "state": state,
        "created_at": moment,
        "updated_at": moment,
        **more,
    }


def _begun(name: str, epoch: int, revision: int) -> list[Operation]:
    """A transaction that is initialised and begun."""
    return [
        Journal(state_of(name, "aborted", epoch, revision, ready=True)),
        Journal(state_of(name, "open", epoch, revision + 1)),
    ]


def _marker(name: str, partition: int, epoch: int) -> Record:
    """What closes a committed transaction in a partition (journal.md section 3.1)."""
    return Record(
        topic=b"orders",
        partition=partition,
        producer_id=f"txn-marker:{name}:commit".encode(),
        sequence=1,
        epoch=epoch,
        payload=b"__cursus_txn_control_marker__",
        transactional_id=name.encode(),
        transaction_state=b"committed",
        transaction_marker=b"commit",
        control_type=b"transaction",
        control_version=2,
        control_coordinator_epoch=epoch,
        control_key=b"\0\0\0\0",
        control_value=b"\0\0" + epoch.to_bytes(4, "big"),
    )


def _commit(name: str, epoch: int, revision: int) -> list[Operation]:
    """Two records in two partitions and an offset, staged, decided and carried out."""
    producer = f"txn-{name}"
    messages = [
        {
            "Topic": "orders",
            "Partition": partition,
            "Message": tj.message(
                ProducerID=producer,
                SeqNum=1,
                Payload=f"{name} in {partition}",
                Epoch=epoch,
                TransactionalID=name,
                TransactionState="open",
            ),
        }
        for partition in (0, 1)
    ]
    offset = {
        "Topic": "orders",
        "Group": "g",
        "Member": "m",
        "Generation": 1,
        "Partition": 0,
        "Offset": 10 * epoch + 2,
        "registration_epoch": 1,
    }

    def put(partition: int, marker: bool) -> Callable[[World], None]:
        """journal.md section 3.1: the record of a partition, or its marker."""

        def step(world: World) -> None:
            item = _marker(name, partition, epoch) if marker else staged(partition)
            world.logs["orders", partition].add(item, SEGMENT_BYTES)
            who = item.producer_id.decode()
            world.producers["orders", partition][who] = (epoch, 1)

        return step

    def staged(partition: int) -> Record:
        return Record(
            topic=b"orders",
            partition=partition,
            producer_id=producer.encode(),
            sequence=1,
            epoch=epoch,
            payload=f"{name} in {partition}".encode(),
            transactional_id=name.encode(),
            transaction_state=b"open",
        )

    def offsets(world: World) -> None:
        group = world.groups["g"]
        held = group.offsets.setdefault("orders", {})
        if held.get(0, 0) < 10 * epoch + 2:
            held[0] = 10 * epoch + 2
            group.revisions["orders"] = group.revisions.get("orders", 0) + 1

    def committed(world: World) -> None:
        world.transactions[name] = ("committed", epoch)

    due = (put(0, False), put(1, False), put(0, True), put(1, True), offsets, committed)
    return [
        *_begun(name, epoch, revision),
        Journal(state_of(name, "open", epoch, revision + 2, messages=messages, offsets=[offset])),
        # The decision is the promise: whatever happens now, a start carries it out.
        Journal(
            state_of(name, "committing", epoch, revision + 3, messages=messages, offsets=[offset]),
            due,
        ),
        FinishTransaction(name),
    ]


def transactions() -> Workload:
    """Two commits of one id, an abort of another, and the journal compacted in between."""
    return Workload(
        "transactions",
        (
            *_commit("pay", 0, 1),
            *_begun("give-up", 0, 1),
            Journal(state_of("give-up", "aborted", 0, 3)),
            CompactJournal(),
            *_commit("pay", 1, 6),
            publish("orders", 0, "ordinary"),
            CompactJournal(),
            *_begun("give-up", 1, 4),
        ),
        before=(ORDERS, Register("g", "orders", 2)),
    )


def decided_and_deleted() -> Workload:
    """A commit whose decision is the first frame that names its topic; then the topic goes."""
    *_, decision, finish = _commit("pay", 0, 1)
    return Workload(
        "decided-and-deleted",
        (*_begun("pay", 0, 1), decision, finish, Delete("orders"), ORDERS),
        before=(ORDERS, Register("g", "orders", 2)),
    )


def journal_threshold() -> Workload:
    """The append that finds 256 superseded frames compacts first."""
    many = [Journal(state_of("busy", "aborted", 0, n, ready=True)) for n in range(1, 256)]
    return Workload(
        "journal-threshold",
        (
            *(Journal(state_of("busy", "aborted", 0, n, ready=True)) for n in range(256, 262)),
            *_begun("other", 0, 1),
        ),
        before=(ORDERS, *many),
    )


def event_streams() -> Workload:
    """Aggregates with snapshots; the files beside the log are derived, the log is not."""
    return Workload(
        "event-streams",
        (
            Create("carts", {"partitions": 1, "event_sourcing": True}),
            AppendEvents("carts", 0, events("cart-1", 1, ["made", "filled"]), SEGMENT_BYTES),
            SaveSnapshot("carts", 0, b"cart-1", 2, b"filled once"),
            AppendEvents("carts", 0, events("cart-2", 1, ["made"]), SEGMENT_BYTES),
            AppendEvents("carts", 0, events("cart-1", 3, ["x" * 200, "paid"]), SEGMENT_BYTES),
            SaveSnapshot("carts", 0, b"cart-1", 4, b"paid, with more to say than before"),
            SaveSnapshot("carts", 0, b"cart-2", 1, b"s"),
            AppendEvents("carts", 0, events("cart-2", 2, ["y" * 200, "z" * 200]), SEGMENT_BYTES),
            Checkpoint(),
        ),
    )


def queued() -> Workload:
    """Queued appends, flushed or overtaken by one that waits; a log whose tail is dropped."""

    def some(kind: type[Publish], number: int, *sizes: int) -> Operation:
        payloads = [f"{number}.{n}" + "q" * size for n, size in enumerate(sizes)]
        return kind("orders", 0, records(*payloads), SEGMENT_BYTES)

    def sent(kind: type[Publish], first: int, *payloads: str) -> Operation:
        return kind("orders", 1, records(*payloads, producer="p", first=first), SEGMENT_BYTES)

    return Workload(
        "queued",
        (
            ORDERS,
            some(FlushQueued, 0, 1, 1, 1),
            some(AppendBehindQueue, 1, 100, 100),
            some(FlushQueued, 2, 200, 200, 200, 200),
            some(AppendBehindQueue, 3, 300, 300, 300),
            sent(FlushQueued, 1, "a", "b"),
            Checkpoint(),
            sent(AppendBehindQueue, 3, "c", "d", "e"),
            Checkpoint(),
            DropTail("orders", 0, 8),
            some(FlushQueued, 4, 10, 10),
            DropTail("orders", 0, 4),
            some(AppendBehindQueue, 5, 1, 1),
        ),
    )


def compacted_retention() -> Workload:
    """Segments with holes, each with the marker that allows them, leave the log."""

    def round_(number: int) -> list[Operation]:
        return [publish("both", 0, f"{number} " + "p" * 40, key=f"k{key}") for key in range(4)] + [
            publish("both", 0, f"no key {number}")
        ]

    return Workload(
        "compacted-retention",
        (
            Create("both", {"partitions": 1, "cleanup_policy": "delete,compact"}),
            *round_(0),
            *round_(1),
            *round_(2),
            Compact("both", 0),
            Retain("both", 0, now_ns=NOON + 3 * HOUR),
            *round_(3),
            *round_(4),
            Compact("both", 0),
            Retain("both", 0, now_ns=NOON + 9 * HOUR),
            publish("both", 0, "after", key="k0"),
        ),
    )


def expiry() -> Workload:
    """Transactions past their expiration become tombstones, behind an append and at a start."""
    long_ago = timestamps.from_unix_ns(NOON - 8 * 24 * HOUR)
    old = {"created_at": long_ago, "updated_at": long_ago}
    return Workload(
        "expiry",
        (
            Journal({**state_of("new", "aborted", 0, 1, ready=True)}),
            Journal({**state_of("old", "aborted", 3, 1, ready=True), **old}),
            *_begun("other", 0, 1),
            Journal({**state_of("older", "committed", 4, 1), **old}),
            Journal(state_of("old", "aborted", 4, 5, ready=True)),
            CompactJournal(),
        ),
        before=(ORDERS,),
    )


#: Every workload by its name.
def silent_producers() -> Workload:
    """Producers that are forgotten and begin anew, under the sequences that they had."""
    return Workload(
        "silent-producers",
        (
            Create("orders", {"partitions": 1, "idempotent": True}),
            publish("orders", 0, "a", "b", "c", "d", producer="p"),
            publish("orders", 0, "other", producer="q"),
            Checkpoint(),
            ForgetProducers("orders", 0),
            publish("orders", 0, "new a", producer="p"),
            publish("orders", 0, "new b", producer="p", first=2),
            Checkpoint(),
            publish("orders", 0, "new c", producer="p", first=3),
            ForgetProducers("orders", 0),
            publish("orders", 0, "newest", producer="p"),
        ),
    )


WORKLOADS: Final = {
    make().name: make
    for make in (
        produce,
        checkpoints,
        groups,
        growth,
        topics,
        truncation,
        retention,
        compaction,
        internal_compaction,
        transactions,
        decided_and_deleted,
        journal_threshold,
        event_streams,
        queued,
        compacted_retention,
        expiry,
        silent_producers,
    )
}
