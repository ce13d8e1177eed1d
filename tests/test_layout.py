"""Every name that journal.md section 8 and segments.md section 2 list, and what is none of them."""

from __future__ import annotations

import pytest

from cursus import layout
from cursus.layout import FileClass, FileKind, Name

BASE = "00000000000000000042"
LOG = f"partition_3_segment_{BASE}.log"
A, D, T, L = (
    FileClass.AUTHORITATIVE,
    FileClass.DERIVED,
    FileClass.TEMPORARY,
    FileClass.LOCK,
)

NAMES = [
    (".cursus.lock", FileKind.LOG_DIR_LOCK, L),
    ("__topic_metadata.json", FileKind.TOPIC_MANIFEST, A),
    ("__topic_metadata.json.tmp", FileKind.TOPIC_MANIFEST_TEMP, T),
    ("__transaction_state.journal", FileKind.JOURNAL, A),
    ("__transaction_state.journal.compact-17", FileKind.JOURNAL_COMPACTION_TEMP, T),
    ("__transaction_state.manifest", FileKind.JOURNAL_MANIFEST, D),
    (f"t/{LOG}", FileKind.SEGMENT_LOG, A),
    (f"t/partition_3_segment_{BASE}.index", FileKind.SEGMENT_INDEX, D),
    (f"t/{LOG}.compacted-123", FileKind.COMPACTION_MARKER, A),
    (f"t/{LOG}.compacting", FileKind.COMPACTION_TEMP, T),
    (f"t/partition_3_segment_{BASE}.index.compacting", FileKind.COMPACTION_TEMP, T),
    (f"t/{LOG}.compacted-123.compacting", FileKind.COMPACTION_TEMP, T),
    (f"t/{LOG}.deleted", FileKind.DELETED_LOG, T),
    (f"t/partition_3_segment_{BASE}.index.deleted", FileKind.DELETED_INDEX, T),
    ("t/partition_3.hwm", FileKind.HWM, D),
    ("t/partition_3.hwm.tmp", FileKind.HWM_TEMP, T),
    ("t/partition_3.producers", FileKind.PRODUCERS, D),
    ("t/partition_3.producers.tmp", FileKind.PRODUCERS_TEMP, T),
    ("t/partition_3.lock", FileKind.PARTITION_LOCK, L),
    ("t/.cursus_lifecycle_epoch", FileKind.LIFECYCLE_EPOCH, A),
    ("t/.cursus_lifecycle_epoch.tmp", FileKind.LIFECYCLE_EPOCH_TEMP, T),
    ("t/partition_3/partition_3_stream.idx", FileKind.AGGREGATE_INDEX, D),
    ("t/partition_3/partition_3_stream_keys.dat", FileKind.AGGREGATE_KEYS, D),
    (
        "t/partition_3/partition_3_snapshots.dat",
        FileKind.AGGREGATE_SNAPSHOTS,
        FileClass.CLIENT_DATA,
    ),
    ("__consumer_metadata_migration.json", FileKind.MIGRATION_AUTHORITY, FileClass.FOREIGN),
    (".topic-metadata-migration-9", FileKind.MANIFEST_MIGRATION_TEMP, FileClass.FOREIGN),
    ("t/partition_01_segment_0.log", FileKind.NONCANONICAL_LOG, A),
    ("t/partition_x.log.deleted", FileKind.NONCANONICAL_LOG, A),
]


def classify(path: str, *, directory: bool = False) -> Name:
    return layout.classify(tuple(path.split("/")), directory=directory)


@pytest.mark.parametrize(("path", "kind", "kept"), NAMES, ids=[path for path, _, _ in NAMES])
def test_every_name_has_its_kind_and_class(path: str, kind: FileKind, kept: FileClass) -> None:
    assert classify(path).kind is kind
    assert layout.file_class(kind) is kept


def test_numbers_of_a_name() -> None:
    name = classify(f"orders/{LOG}.compacted-123")
    assert name == Name(FileKind.COMPACTION_MARKER, "orders", 3, 42, 123)


def test_directories() -> None:
    assert classify("orders", directory=True) == Name(FileKind.TOPIC_DIRECTORY, "orders")
    assert classify("orders/partition_3", directory=True).kind is FileKind.AGGREGATE_DIRECTORY
    assert classify("raft", directory=True).kind is FileKind.RAFT_DIRECTORY
    assert classify("lost+found", directory=True).kind is FileKind.UNKNOWN


@pytest.mark.parametrize(
    "name",
    [
        f"partition_03_segment_{BASE}.log",
        "partition_3_segment_42.log",
        f"partition_3_segment_{BASE}.log\n",
        f"partition_\N{ARABIC-INDIC DIGIT THREE}_segment_{BASE}.log",
        f"partition_3_segment_{BASE}0.log",
        f"partition_+3_segment_{BASE}.log",
        f"PARTITION_3_segment_{BASE}.log",
    ],
)
def test_nothing_else_is_a_segment(name: str) -> None:
    assert classify(f"t/{name}").kind is not FileKind.SEGMENT_LOG


@pytest.mark.parametrize(
    "name", ["notes.txt", "partition_3", "", "a\nb", "x\udcff", "partition_3.HWM"]
)
def test_unknown_names(name: str) -> None:
    assert classify(f"t/{name}").kind is FileKind.UNKNOWN


def test_names_out_of_range_keep_their_numbers() -> None:
    name = classify("t/partition_4294967296_segment_99999999999999999999.log")
    assert name.partition is not None
    assert name.partition > layout.MAX_PARTITION
    assert name.base is not None
    assert name.base > layout.MAX_OFFSET


def test_builders_and_classification_agree() -> None:
    log = layout.segment_log(3, 42)
    assert log == LOG
    for name, kind in [
        (log, FileKind.SEGMENT_LOG),
        (layout.segment_index(3, 42), FileKind.SEGMENT_INDEX),
        (layout.compaction_marker(log, 7), FileKind.COMPACTION_MARKER),
        (layout.deleted(log), FileKind.DELETED_LOG),
        (layout.compacting(log), FileKind.COMPACTION_TEMP),
        (layout.compacting(layout.compaction_marker(log, 7)), FileKind.COMPACTION_TEMP),
        (layout.hwm(3), FileKind.HWM),
        (layout.temporary(layout.hwm(3)), FileKind.HWM_TEMP),
        (layout.producers(3), FileKind.PRODUCERS),
        (layout.temporary(layout.producers(3)), FileKind.PRODUCERS_TEMP),
        (layout.partition_lock(3), FileKind.PARTITION_LOCK),
    ]:
        assert classify(layout.topic_file("t", name)).kind is kind
    assert classify(layout.journal_compaction(5)).kind is FileKind.JOURNAL_COMPACTION_TEMP
    for kind in (
        FileKind.AGGREGATE_INDEX,
        FileKind.AGGREGATE_KEYS,
        FileKind.AGGREGATE_SNAPSHOTS,
    ):
        path = f"t/{layout.aggregate_directory(3)}/{layout.aggregate_file(3, kind)}"
        assert classify(path) == Name(kind, "t", 3)


def test_a_topic_named_raft_keeps_its_logs() -> None:
    assert classify(f"raft/{LOG}").kind is FileKind.SEGMENT_LOG
    assert classify("raft/snapshot").kind is FileKind.RAFT_FILE


def test_markers_are_matched_literally() -> None:
    assert layout.marker_size(f"{LOG}.compacted-0123", LOG) == 123
    assert layout.marker_size(f"{LOG}.deleted.compacted-9", f"{LOG}.deleted") == 9
    for name in (f"{LOG}.compacted-", f"{LOG}.compacted--1", f"{LOG}.compacted-1 ", f"x{LOG}"):
        assert layout.marker_size(name, LOG) is None


def test_paths_are_cleaned_without_looking() -> None:
    assert layout.absolute("/a//b/../c/") == "/a/c"
    assert layout.absolute("//a") == "/a"


@pytest.mark.parametrize("name", ["a", ".hidden", "...", "a" * 249, "A-Z=0_9.x"])
def test_topic_names(name: str) -> None:
    assert layout.is_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "a\n", "é", "a/b", "a+b"])
def test_no_topic_names(name: str) -> None:
    assert not layout.is_topic_name(name)
