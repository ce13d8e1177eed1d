"""Topics on disk: every step of create, grow, delete and truncate may fail or be the last."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from store_help import Tape, files, plan_of, refusal_of, tree_of
from test_manifest_vectors import GOLDEN, VECTORS, definition_of, plain

from cursus import layout
from cursus.findings import CATALOGUE, FormatError
from cursus.formats import checkpoints
from cursus.formats import topic_manifest as tm
from cursus.storage.errors import StoreError
from cursus.storage.manifest_store import ManifestStore, TopicLimits

LOG = layout.segment_log(0, 0)


def fresh(directory: Path, tape: Tape | None = None) -> ManifestStore:
    """A store as a start leaves it: with the internal topic and one topic that holds a record."""
    store = ManifestStore(files(), str(directory))
    store.ensure_internal_topic()
    store.create("orders", {"partitions": 2})
    shutil.copy(GOLDEN / "manifest" / "blobs" / "orders_p0_0-1.log", directory / "orders" / LOG)
    return opened(directory, tape)


def opened(directory: Path, tape: Tape | None = None) -> ManifestStore:
    plan = plan_of(directory)
    assert plan.verdict != "refuses", plan.first_refusal
    return ManifestStore.from_replay(files(tape), str(directory), plan.manifest, plan.topics)


def manifest_of(directory: Path) -> dict[str, tm.TopicDefinition]:
    data = (directory / layout.MANIFEST).read_bytes()
    return {item.name: item for item in tm.decode(data).definitions}


# -- vectors -------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["canonical_saves"], ids=lambda v: str(v["name"]))
def test_a_save_is_byte_for_byte_that_of_the_vector(vector: dict[str, Any], tmp_path: Path) -> None:
    definitions = [definition_of(d) for d in vector["input_definitions"]]
    assert ManifestStore(files(), str(tmp_path), definitions).save()
    expected = (GOLDEN / "manifest" / vector["file"]).read_bytes()
    assert tree_of(tmp_path) == {layout.MANIFEST: expected}
    assert (tmp_path / layout.MANIFEST).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("vector", VECTORS["rejected_saves"], ids=lambda v: str(v["name"]))
def test_a_save_that_is_refused_touches_nothing(vector: dict[str, Any], tmp_path: Path) -> None:
    if vector["name"] == "oversize":  # described in words: one ACL entry as long as the limit
        policy = tm.Policy(read_acl=("x" * tm.MAX_BYTES,))
        given = [tm.TopicDefinition("a", 1, 1, 1, 1, policy=policy)]
    else:
        given = [definition_of(d) for d in vector["input_definitions"]]
    store = ManifestStore(files(), str(tmp_path))
    names = [item.name for item in given]
    if len(set(names)) < len(names) or layout.INTERNAL_TOPIC in names:
        # A registry holds a name once and forces the internal policy: only the codec meets these.
        assert vector["code"] in {"topic_duplicate", "internal_topic_contract_mismatch"}
        return
    with pytest.raises(FormatError) as error:
        store._save({item.name: item for item in given})
    assert error.value.code == vector["code"]
    assert tree_of(tmp_path) == {}


@pytest.mark.parametrize("vector", VECTORS["definition_patches"], ids=lambda v: str(v["name"]))
def test_a_patch_on_disk(vector: dict[str, Any], tmp_path: Path) -> None:
    current = definition_of(vector["current"])
    name = current.name
    before: dict[str, bytes] = {}
    store = ManifestStore(files(), str(tmp_path))
    if vector["topic_exists"]:
        store = ManifestStore(files(), str(tmp_path), [current])
        (tmp_path / name).mkdir()
        for partition in range(current.partitions):
            (tmp_path / name / layout.segment_log(partition, 0)).touch()
        marker = checkpoints.encode_lifecycle_epoch(current.lifecycle_epoch)
        (tmp_path / name / layout.LIFECYCLE_EPOCH).write_bytes(marker)
        store.save()
        before = tree_of(tmp_path)
    if "result" in vector:
        change = store.create(name, vector["patch"])
        assert plain(change.definition) == plain(definition_of(vector["result"]))
        assert plain(manifest_of(tmp_path)[name]) == plain(definition_of(vector["result"]))
        assert refusal_of(tmp_path) is None
    else:
        with pytest.raises(FormatError) as error:
            store.create(name, vector["patch"])
        assert error.value.code == vector["code"]
        assert tree_of(tmp_path) == before


# -- what each operation leaves -------------------------------------------------------


def test_the_order_of_the_steps(tmp_path: Path) -> None:
    tape = Tape()
    store = ManifestStore(files(tape), str(tmp_path))
    save = [
        "create __topic_metadata.json.tmp",
        "write __topic_metadata.json.tmp",
        "fsync __topic_metadata.json.tmp",
        "rename __topic_metadata.json",
        f"sync_directory {tmp_path.name}",
    ]
    store.create("orders", {"partitions": 2})
    assert tape.kinds() == [
        "mkdir orders",
        f"sync_directory {tmp_path.name}",
        f"create {LOG}",
        f"create {layout.segment_log(1, 0)}",
        "sync_directory orders",
        *save,
    ]
    tape.operations.clear()
    store.truncate("orders", 1)
    assert tape.kinds() == [
        "create .cursus_lifecycle_epoch.tmp",
        "write .cursus_lifecycle_epoch.tmp",
        "fsync .cursus_lifecycle_epoch.tmp",
        "sync_directory orders",
        *save,
        f"unlink {LOG}",
        f"unlink {layout.segment_log(1, 0)}",
        "sync_directory orders",
        f"create {LOG}",
        f"create {layout.segment_log(1, 0)}",
        "sync_directory orders",
        "rename .cursus_lifecycle_epoch",
        "sync_directory orders",
    ]
    tape.operations.clear()
    assert store.delete("orders")
    assert tape.kinds() == [
        *save,
        f"unlink {LOG}",
        f"unlink {layout.segment_log(1, 0)}",
        "sync_directory orders",
        "unlink .cursus_lifecycle_epoch",
        "sync_directory orders",
        "rmdir orders",
        f"sync_directory {tmp_path.name}",
    ]


def test_a_life_of_a_topic(tmp_path: Path) -> None:
    store = ManifestStore(files(), str(tmp_path))
    store.ensure_internal_topic()
    assert store.create("orders", {"partitions": 1}).opened == range(1)
    grown = store.create("orders", {"partitions": 3, "retention_hours": 24})
    assert (grown.created, grown.changed, grown.opened) == (False, True, range(1, 3))
    assert grown.definition.revision == 2
    assert not store.create("orders", {"partitions": 3}).changed
    assert store.set_min_in_sync_replicas("orders", 2).revision == 3
    assert store.set_min_in_sync_replicas("orders", 2).revision == 3
    assert store.set_min_in_sync_replicas("orders", None).revision == 4
    emptied = store.truncate("orders", 4)
    assert (emptied.revision, emptied.lifecycle_epoch) == (5, 2)
    assert (tmp_path / "orders" / layout.LIFECYCLE_EPOCH).read_bytes() == b"2\n"
    assert manifest_of(tmp_path)["orders"] == store.get("orders") == emptied
    assert plan_of(tmp_path).verdict == "starts_clean"
    assert store.delete("orders")
    assert not (tmp_path / "orders").exists()
    again = store.create("orders", {}).definition
    assert (again.revision, again.lifecycle_epoch, again.partitions) == (1, 1, 4)
    assert plan_of(tmp_path).verdict == "starts_clean"
    assert opened(tmp_path).definitions == store.definitions


def test_the_internal_topic_is_what_it_is(tmp_path: Path) -> None:
    store = ManifestStore(files(), str(tmp_path), defaults={"cleanup_policy": "delete"})
    made = store.create(layout.INTERNAL_TOPIC, {"event_sourcing": True, "retention_hours": 1})
    assert made.definition.policy == tm.INTERNAL_POLICY
    assert (made.definition.partitions, made.definition.event_sourcing) == (4, False)
    assert store.ensure_internal_topic(6).opened == range(4, 6)
    assert not store.ensure_internal_topic(5).opened
    for refused, code in (
        (lambda: store.delete(layout.INTERNAL_TOPIC), "internal_topic_delete_forbidden"),
        (lambda: store.truncate(layout.INTERNAL_TOPIC, 2), "internal_topic_truncate_forbidden"),
    ):
        with pytest.raises(StoreError) as error:
            refused()
        assert error.value.code == code
        assert code in CATALOGUE


def test_a_manifest_with_another_internal_policy_is_not_rewritten_but_forced(
    tmp_path: Path,
) -> None:
    ManifestStore(files(), str(tmp_path)).ensure_internal_topic()
    path = tmp_path / layout.MANIFEST
    weaker = path.read_bytes().replace(b'"compact"', b'"delete"')
    path.write_bytes(weaker)
    store = opened(tmp_path)
    assert store.definitions[layout.INTERNAL_TOPIC].policy == tm.INTERNAL_POLICY
    assert path.read_bytes() == weaker
    store.create("orders", {})
    assert manifest_of(tmp_path)[layout.INTERNAL_TOPIC].policy == tm.INTERNAL_POLICY


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (lambda s: s.create("a b", {}), "topic_name_invalid_character"),
        (lambda s: s.create("raft", {}), "topic_name_reserved_by_broker"),
        (lambda s: s.create("more", {"partitions": 9}), "topic_capacity_exceeded"),
        (lambda s: s.create("more", {"partitions": 7}), "topic_capacity_exceeded"),
        (lambda s: s.create("orders", {"partitions": 1}), "partitions_decrease_forbidden"),
        (lambda s: s.delete("nobody"), "topic_not_found"),
        (lambda s: s.truncate("nobody", 1), "topic_not_found"),
        (lambda s: s.truncate("orders", 2), "topic_revision_conflict"),
        (lambda s: s.remove_leftover("orders"), "topic_storage_declared"),
        (lambda s: s.set_min_in_sync_replicas("orders", 9), "min_in_sync_replicas_invalid"),
        (lambda s: s.resume_truncation("orders"), "topic_not_found"),
    ],
)
def test_refused_requests_change_nothing(
    request_: Callable[[ManifestStore], object], code: str, tmp_path: Path
) -> None:
    fresh(tmp_path)
    store = opened(tmp_path)
    store._limits = TopicLimits(max_partitions_per_topic=8, max_partitions=12)
    before = tree_of(tmp_path)
    with pytest.raises((StoreError, FormatError)) as error:
        request_(store)
    assert error.value.code == code
    assert code in CATALOGUE
    assert tree_of(tmp_path) == before


# -- a failure of each step, the process lives on --------------------------------------

OPERATIONS: dict[str, Callable[[ManifestStore], object]] = {
    "create": lambda s: s.create("more", {"partitions": 2}),
    "grow": lambda s: s.create("orders", {"partitions": 3}),
    "alter": lambda s: s.create("orders", {"retention_hours": 1}),
    "delete": lambda s: s.delete("orders"),
    "truncate": lambda s: s.truncate("orders", 1),
}


def every_failure(name: str, directory: Path, *, dead: bool) -> Any:
    """Run the operation with each of its steps failing, each in a directory of its own."""
    number = 0
    while True:
        place = directory / str(number)
        place.mkdir()
        fresh(place)
        before = manifest_of(place)
        tape = Tape(number, dead=dead)
        store = opened(place, tape)
        error = None
        try:
            OPERATIONS[name](store)
        except StoreError as found:
            error = found
        if not tape.failed:
            return
        yield place, store, error, before, tape.operations[number]
        number += 1


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_error_leaves_memory_and_disk_agreed(name: str, tmp_path: Path) -> None:
    seen = 0
    for place, store, error, before, operation in every_failure(name, tmp_path, dead=False):
        seen += 1
        assert manifest_of(place) == dict(store.definitions), operation
        if error is not None and error.code != "topic_lifecycle_pending":
            assert dict(store.definitions) == before, operation
            assert plan_of(place).verdict == "starts_clean", operation
            assert not (place / layout.MANIFEST_TEMP).exists()
        if error is not None:
            OPERATIONS[name](store)  # the same request again succeeds
        for left in store.leftover:
            assert store.remove_leftover(left), operation
        assert not store.pending
        assert plan_of(place).verdict == "starts_clean", operation
        assert opened(place).definitions == store.definitions
    assert seen >= 4


def test_a_lost_sync_after_the_rename_is_a_warning(tmp_path: Path) -> None:
    fresh(tmp_path)
    tape = Tape(4)
    store = opened(tmp_path, tape)
    changed = store.create("orders", {"retention_hours": 1})
    assert tape.operations[4].kind == "sync_directory"
    assert manifest_of(tmp_path)["orders"] == changed.definition
    assert store.durability_warning is not None
    assert store.durability_warnings == 1
    store.create("orders", {})
    assert store.durability_warning is None
    assert store.durability_warnings == 1


def test_nothing_is_removed_on_the_strength_of_a_manifest_that_may_be_lost(
    tmp_path: Path,
) -> None:
    fresh(tmp_path)
    tape = Tape(4)
    store = opened(tmp_path, tape)
    assert not store.delete("orders")
    assert (tmp_path / "orders" / LOG).stat().st_size
    assert store.leftover == {"orders"}
    assert store.remove_leftover("orders")
    assert not (tmp_path / "orders").exists()


# -- a crash at each step ----------------------------------------------------------------

#: What a start says to a crash inside an operation (README.md decision 34), by what it left.
ALLOWED = {
    "create": {None, "undeclared_persisted_topic"},
    "grow": {None, "declared_topic_partition_out_of_range"},
    "alter": {None},
    "delete": {None, "undeclared_persisted_topic"},
    "truncate": {None},
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_crash_leaves_what_is_documented(name: str, tmp_path: Path) -> None:
    told = set()
    for place, _, _, before, operation in every_failure(name, tmp_path, dead=True):
        code = refusal_of(place)
        told.add(code)
        assert code in ALLOWED[name], operation
        if code is not None:
            remedy(place, name)
            assert refusal_of(place) is None, operation
        store = opened(place)
        store.settle()
        for pending in store.pending:
            store.resume_truncation(pending)
        assert plan_of(place).verdict == "starts_clean", operation
        now = manifest_of(place)
        whole = {k: v for k, v in now.items() if k in before or k == "more"}
        assert whole == now
        if now.get("orders") == before["orders"]:
            assert (place / "orders" / LOG).stat().st_size, operation
    assert told == ALLOWED[name]


def remedy(place: Path, name: str) -> None:
    """What section 5.3 tells the operator to do."""
    if name == "grow":
        extra = place / "orders" / layout.segment_log(2, 0)
        assert extra.stat().st_size == 0
        extra.unlink()
        return
    shutil.rmtree(place / ("more" if name == "create" else "orders"))


def test_a_resumed_truncation_that_crashes_is_resumed_again(tmp_path: Path) -> None:
    number = 0
    while True:
        place = tmp_path / str(number)
        place.mkdir()
        fresh(place)
        with pytest.raises(StoreError):
            opened(place, Tape(9, dead=True)).truncate("orders", 1)
        tape = Tape(number, dead=True)
        store = opened(place, tape)
        assert store.pending == {"orders"}
        with suppress(StoreError):
            store.resume_truncation("orders")
        if not tape.failed:
            break
        assert refusal_of(place) is None, tape.operations[-1]
        again = opened(place)
        for name in again.pending:
            again.resume_truncation(name)
        assert (place / "orders" / LOG).stat().st_size == 0
        assert plan_of(place).verdict == "starts_clean"
        number += 1
    assert number >= 8


@pytest.mark.parametrize("failure", [OSError("full"), StoreError("tombstone_write_failed")])
def test_what_stays_open_keeps_its_directory(failure: Exception, tmp_path: Path) -> None:
    fresh(tmp_path)
    store = opened(tmp_path)

    def release() -> None:
        raise failure

    with pytest.raises(StoreError) as error:
        store.truncate("orders", 1, release=release)
    assert error.value.code == "topic_lifecycle_pending"
    assert (tmp_path / "orders" / LOG).stat().st_size
    assert store.truncate("orders", 1).revision == 2
    assert not store.delete("orders", release=release)
    assert (tmp_path / "orders" / LOG).exists()
    assert store.remove_leftover("orders")
    assert plan_of(tmp_path).verdict == "starts_clean"


@pytest.mark.parametrize("failure", [OSError("full"), StoreError("tombstone_write_failed")])
def test_groups_are_forgotten_before_a_truncation_ends(failure: Exception, tmp_path: Path) -> None:
    fresh(tmp_path)
    store = opened(tmp_path)
    called = []

    def forget() -> None:
        called.append((tmp_path / "orders" / layout.LIFECYCLE_EPOCH).exists())
        if len(called) == 1:
            raise failure

    with pytest.raises(StoreError) as error:
        store.truncate("orders", 1, forget=forget)
    assert error.value.code == "topic_lifecycle_pending"
    assert store.get("orders") is None
    with pytest.raises(StoreError):
        store.create("orders", {})
    assert opened(tmp_path).pending == {"orders"}
    with pytest.raises(StoreError) as error:
        store.truncate("orders", 2, forget=forget)
    assert error.value.code == "topic_revision_conflict"
    assert store.truncate("orders", 1, forget=forget).revision == 2
    assert called == [False, False]


# -- what stands there already -----------------------------------------------------------


def test_what_a_deletion_left_is_cleared_by_the_next_creation(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    directory = tmp_path / "orders"
    (directory / layout.hwm(0)).write_bytes(b"500\n")
    (directory / layout.producers(0)).write_bytes(b"{}\n")
    (directory / layout.partition_lock(0)).touch()
    (directory / layout.LIFECYCLE_EPOCH).write_bytes(b"9\n")
    (directory / "partition_0").mkdir()
    (directory / "partition_0" / "partition_0_stream.idx").write_bytes(bytes(32))
    crashed = opened(tmp_path, Tape(8, dead=True))  # behind the logs
    assert not crashed.delete("orders")
    assert refusal_of(tmp_path) is None
    assert directory.exists()
    store = opened(tmp_path)
    store.create("orders", {"partitions": 1})
    assert {path.name for path in directory.iterdir()} == {LOG}
    assert store.truncate("orders", 1).lifecycle_epoch == 2


@pytest.mark.parametrize(
    "name",
    [
        LOG,
        layout.deleted(LOG),
        "partition_0/partition_0_snapshots.dat",
        "notes.txt",
        "partition_01_segment_0.log",
    ],
)
def test_what_is_somebodys_data_refuses_a_creation(name: str, tmp_path: Path) -> None:
    store = ManifestStore(files(), str(tmp_path))
    store.ensure_internal_topic()
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "orders" / name).write_bytes(b"evidence")
    (tmp_path / "orders" / layout.hwm(0)).write_bytes(b"1\n")
    before = tree_of(tmp_path)
    with pytest.raises(StoreError) as error:
        store.create("orders", {})
    assert error.value.code == "topic_storage_without_definition"
    assert tree_of(tmp_path) == before


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"x")
    log_dir = tmp_path / "log"
    log_dir.mkdir()
    store = fresh(log_dir)
    (log_dir / "orders" / "link").symlink_to(outside)
    (log_dir / "orders" / "deep").mkdir()
    (log_dir / "orders" / "deep" / "link").symlink_to(outside)
    assert store.delete("orders")
    assert (outside / "kept").read_bytes() == b"x"
    (log_dir / "more").symlink_to(outside)
    with pytest.raises(StoreError):
        store.create("more", {})
    assert {path.name for path in outside.iterdir()} == {"kept"}


def test_the_written_manifest_is_what_the_reference_reads(tmp_path: Path) -> None:
    fresh(tmp_path)
    document = json.loads((tmp_path / layout.MANIFEST).read_text("utf-8"))
    assert document["version"] == 3
    assert [item["name"] for item in document["topics"]] == ["__consumer_offsets", "orders"]
