"""Each named query gives the answer that is known beforehand.

What is known comes from the ground truth of a fixture (``expected.json``, the
facts, faults and findings of ``case.json``), from the payloads of the records
themselves, or from a fault that is made here; never from running the query.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import index_help as help_
import pytest

from cursus.formats.record import Record, decode, encode_frame
from inspect_db import fixtures, load, queries_catalogue
from inspect_db.index import open_index
from inspect_db.values import number

Rows = list[tuple[Any, ...]]
SMALL = "small-healthy"
LOG = "{}/partition_{}_segment_{:020}.log"


class Case(NamedTuple):
    """One question, and how its answer is known."""

    query: str
    fixture: str
    columns: str
    given: dict[str, str]
    expected: Callable[[], Rows]
    ordered: bool


CASES: list[Case] = []


def answers(
    query: str, fixture: str, columns: str, ordered: bool = False, **given: str
) -> Callable[[Callable[[], Rows]], Callable[[], Rows]]:
    """The decorated function says which rows the query gives on a fixture."""

    def add(expected: Callable[[], Rows]) -> Callable[[], Rows]:
        CASES.append(Case(query, fixture, columns, given, expected, ordered))
        return expected

    return add


# -- what is known -----------------------------------------------------------------------


@cache
def truth(name: str) -> Any:
    return json.loads((help_.ROOT / name / "expected.json").read_text("utf-8"))


@cache
def case(name: str) -> Any:
    return json.loads((help_.ROOT / name / "case.json").read_text("utf-8"))


def facts(name: str) -> Any:
    return case(name)["inspector"]["facts"]


def told(name: str, code: str) -> list[dict[str, Any]]:
    """Findings of one code that the case demands."""
    return [item for item in case(name)["inspector"]["findings"] if item["code"] == code]


def partitions(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for topic, item in truth(name)["topics"].items():
        for part in item["partitions"]:
            yield topic, part


def committed(name: str) -> Iterator[tuple[str, str, int, int, dict[str, Any]]]:
    """Group, topic, partition, offset, group as the workload knows it."""
    for group, item in truth(name)["consumer_groups"].items():
        for topic, offsets in item.get("committed", {}).items():
            for partition, offset in offsets.items():
                yield group, topic, int(partition), offset, item


def frames(path: Path) -> Iterator[tuple[int, Record, int]]:
    """Position, record and length of each frame of a log that is whole."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        yield at, decode(data[at + 4 : end]), end - at
        at = end


def undecided(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for transactional_id, item in truth(name)["transactions"].items():
        if item["state"] in {"open", "committing"}:
            yield transactional_id, item


# -- faults made here --------------------------------------------------------------------

MADE: dict[str, Callable[[Path], object]] = {}


def made(fault: Callable[[Path], object]) -> str:
    """A log directory of SMALL with a fault; returns its name."""
    MADE[fault.__name__] = fault
    return fault.__name__


@cache
def index_of(name: str) -> Path:
    if name not in MADE:
        return help_.built(name)
    folder = help_.temporary_folder("cursus-query-")
    directory = fixtures.materialise(help_.FIXTURES[SMALL], folder)
    waiting = [MADE[name]]
    if name != "grows_under_the_reader":
        waiting.pop()(directory)

    def progress(_: int, __: int) -> None:
        if waiting:
            waiting.pop()(directory)

    target = folder / "index.db"
    options = load.BuildOptions(help_.FIXTURES[SMALL].as_of)
    load.build(str(directory), str(target), options, progress)
    return target


def rewrite(path: Path, change: Callable[[Record], Record]) -> None:
    path.write_bytes(b"".join(encode_frame(change(record)) for _, record, _ in list(frames(path))))


def last_sequences() -> list[int]:
    """Sequences of desk-1 in the active segment of orders/0."""
    log = help_.log_dir(SMALL) / LOG.format("orders", 0, 501)
    return [r.sequence for _, r, _ in frames(log) if r.producer_id == b"desk-1"]


@made
def skips_a_version(directory: Path) -> None:
    rewrite(
        directory / LOG.format("quotes", 0, 127),
        lambda r: (
            replace(r, aggregate_version=r.aggregate_version + 1) if r.key == b"quote-0002" else r
        ),
    )


@made
def lost_the_last_events(directory: Path) -> None:
    path = directory / LOG.format("quotes", 0, 127)
    path.unlink()
    path.with_suffix(".index").unlink()


@made
def retention_was_faster(directory: Path) -> None:
    for base in (0, 170, 337):
        path = directory / LOG.format("payments", 0, base)
        path.unlink()
        path.with_suffix(".index").unlink()


@made
def topic_that_nobody_declared(directory: Path) -> None:
    shutil.copytree(directory / "visits", directory / "visits-2025")


@made
def grows_under_the_reader(directory: Path) -> None:
    with (directory / LOG.format("visits", 0, 0)).open("ab") as log:
        log.write(b"\0")


@made
def producer_skips_and_repeats(directory: Path) -> None:
    """The last record of desk-1 skips one sequence; the last one of desk-2 repeats one."""
    log = directory / LOG.format("orders", 0, 501)
    desks: dict[bytes, list[Record]] = {b"desk-1": [], b"desk-2": []}
    for _, record, _ in frames(log):
        if record.producer_id in desks:
            desks[record.producer_id].append(record)
    skips, repeats = desks[b"desk-1"][-1], desks[b"desk-2"][-1]
    becomes = {skips.offset: skips.sequence + 1, repeats.offset: repeats.sequence - 1}
    rewrite(log, lambda r: replace(r, sequence=becomes.get(r.offset, r.sequence)))


# -- the catalogue -----------------------------------------------------------------------


@answers("aggregate_gaps", SMALL, "key")
@answers("aggregate_snapshots_ahead", SMALL, "key")
@answers("behind_damage", SMALL, "path")
@answers("changed_files", SMALL, "path")
@answers("checkpoints", SMALL, "path")
@answers("commits_below_log_start", SMALL, "group_name")
@answers("commits_beyond_log_end", SMALL, "group_name")
@answers("declared_without_storage", SMALL, "topic")
@answers("group_conflicts", SMALL, "code")
@answers("groups_of_missing_topics", SMALL, "group_name")
@answers("groups_of_missing_topics", "empty-manifest", "group_name")
@answers("historical_offsets", SMALL, "group_name")
@answers("index_findings", SMALL, "code")
@answers("offsets_moved_back", SMALL, "group_name")
@answers("offsets_without_registration", SMALL, "group_name")
@answers("orphan_directories", SMALL, "topic")
@answers("orphan_directories", "empty-manifest", "topic")
@answers("orphan_directories", "manifest-stale-tail", "topic")
@answers("producer_gaps", SMALL, "producer")
@answers("revision_gaps", SMALL, "group_name")
@answers("segment_seams", SMALL, "path")
@answers("staged_offsets", SMALL, "group_name")
@answers("what_a_start_does", SMALL, "kind")
@answers("what_a_start_does", "damaged-length-bit-flip", "kind")
@answers("what_is_lost", SMALL, "code")
def nothing() -> Rows:
    return []


@answers("aggregate_gaps", skips_a_version, "topic partition key expected found")
def version_that_was_skipped() -> Rows:
    log = help_.log_dir(SMALL) / LOG.format("quotes", 0, 127)
    first = next(r.aggregate_version for _, r, _ in frames(log) if r.key == b"quote-0002")
    return [("quotes", 0, "quote-0002", first, first + 1)]


@answers("aggregate_snapshots_ahead", lost_the_last_events, "key snapshot_version log_version")
def saved_states_above_what_is_left() -> Rows:
    (part,) = truth(SMALL)["topics"]["quotes"]["partitions"]
    log = help_.log_dir(SMALL) / LOG.format("quotes", 0, 0)
    left = Counter(r.key.decode() for _, r, _ in frames(log))
    saved = {key: item["version"] for key, item in part["latest_snapshots"].items()}
    return [(key, saved[key], left[key]) for key in saved if saved[key] > left[key]]


@answers("behind_damage", "zeroed-batch-mid-segment", "path damage_at position records first last")
def frames_behind_zeros() -> Rows:
    behind = facts("zeroed-batch-mid-segment")["complete_frames_behind_the_damage"]
    (fault,) = case("zeroed-batch-mid-segment")["fault"]
    first, last = behind[0], behind[-1]
    at = (fault["path"], fault["position"], first["position"])
    return [(*at, len(behind), first["offset"], last["offset"])]


@answers("changed_files", grows_under_the_reader, "path kind")
def file_that_grew() -> Rows:
    return [(LOG.format("visits", 0, 0), "segment_log")]


@answers("checkpoints", "damaged-cut-at-4096", "path topic partition stored actual difference")
def checkpoint_ahead() -> Rows:
    return [
        (f["path"], f["topic"], f["partition"], f["hwm"], f["log_end"], f["hwm"] - f["log_end"])
        for f in told("damaged-cut-at-4096", "hwm_checkpoint_ahead_of_log")
    ]


@answers("checkpoints", "shop-killed", "topic partition stored actual")
def checkpoints_behind_or_not_there() -> Rows:
    return [
        (topic, part["partition"], part["hwm_checkpoint"], part["log_end"])
        for topic, part in partitions("shop-killed")
        if part["hwm_checkpoint"] != part["log_end"]
    ]


@answers(
    "commits_below_log_start",
    retention_was_faster,
    "group_name topic partition committed_offset log_start outside_by",
)
def offset_below_what_is_left() -> Rows:
    offset = truth(SMALL)["consumer_groups"]["billing"]["committed"]["payments"]["0"]
    return [("billing", "payments", 0, offset, 504, 504 - offset)]


def out_of_range(name: str) -> Rows:
    found = told(name, "committed_offset_out_of_range")
    return [
        (f["group"], f["topic"], f["partition"], number(int(f["offset"])), f["log_end"])
        for f in found
    ]


BEYOND = "group_name topic partition committed_offset log_end"


@answers("commits_beyond_log_end", "damaged-older-offsets", BEYOND)
def offsets_of_a_longer_log() -> Rows:
    return out_of_range("damaged-older-offsets")


@answers("commits_beyond_log_end", "values-at-the-edge", BEYOND)
def offsets_at_the_edge() -> Rows:
    return out_of_range("values-at-the-edge")


COMMITTED = "group_name topic partition committed_offset revision epoch"


@answers("committed_offsets", SMALL, COMMITTED)
def all_committed_offsets() -> Rows:
    return [
        (group, topic, partition, offset, item["revisions"][topic], item["epoch"])
        for group, topic, partition, offset, item in committed(SMALL)
    ]


@answers("committed_offsets", SMALL, COMMITTED, group="mailer")
def committed_offsets_of_one_group() -> Rows:
    return [row for row in all_committed_offsets() if row[0] == "mailer"]


@answers("declared_without_storage", "case-colliding-topics", "topic storage_partitions")
def declared_and_not_there() -> Rows:
    found = told("case-colliding-topics", "declared_topic_storage_missing")
    return [(item["path"], 0) for item in found]


@answers("declared_without_storage", "directory-where-log-should-be", "topic storage_partitions")
def partition_that_is_a_directory() -> Rows:
    there = facts("directory-where-log-should-be")["partitions_present"]
    return [("orders", len(there))]


@answers("fenced_snapshots", "recreated-group-wrong-order", "path position")
def snapshots_of_an_older_life() -> Rows:
    return [
        (item["path"], item["position"])
        for item in facts("recreated-group-wrong-order")["dispositions"]
        if item["disposition"] == "snapshot_fenced_epoch"
    ]


@answers(
    "fenced_snapshots",
    "registration-lost-first-segment-missing",
    "group_name reason current_epoch",
)
def snapshots_that_nobody_owns() -> Rows:
    orphans = facts("registration-lost-first-segment-missing")["orphan_records"]
    return [("dispatch", "no registration of the group is in the log", None)] * orphans


@answers("findings_by_code", "case-colliding-topics", "code severity times", ordered=True)
def what_was_found() -> Rows:
    found = Counter(item["code"] for item in case("case-colliding-topics")["inspector"]["findings"])
    return [(code, "error", times) for code, times in sorted(found.items())]


@answers("foreign_files", "fifo-as-journal", "path type")
def pipes_and_the_lock() -> Rows:
    faults = case("fifo-as-journal")["fault"]
    return [(item["path"], "fifo") for item in faults] + [(".cursus.lock", "file")]


@answers("group_conflicts", "offset-goes-backwards", "code group_name path position")
def the_record_that_refuses() -> Rows:
    name = "offset-goes-backwards"
    return [
        (f["code"], f["group"], f["path"], f["position"])
        for f in told(name, "snapshot_offset_regression")
    ]


@answers("group_conflicts", "json-oddities-in-offsets-topic", "path position")
def twelve_payloads() -> Rows:
    """Without the codes: the case leaves one of them open."""
    found = case("json-oddities-in-offsets-topic")["inspector"]["findings"]
    assert len(found) == facts("json-oddities-in-offsets-topic")["corrupt_records"]
    return [(item["path"], item["position"]) for item in found]


@answers("group_lives", "recreated-group-wrong-order", "epoch type disposition", ordered=True)
def three_lives() -> Rows:
    lives = []
    for item in facts("recreated-group-wrong-order")["dispositions"]:
        path = help_.log_dir("recreated-group-wrong-order") / item["path"]
        record = next(r for at, r, _ in frames(path) if at == item["position"])
        payload = json.loads(record.payload)
        if payload["type"] != "offset_snapshot":
            lives.append((payload["epoch"], payload["type"], item["disposition"]))
    return sorted(lives)


@answers("groups", SMALL, "group_name state epoch committed_partitions", ordered=True)
def groups_of_the_workload() -> Rows:
    per_group = Counter(row[0] for row in committed(SMALL))
    return [
        (group, item["state"], item["epoch"], per_group[group])
        for group, item in sorted(truth(SMALL)["consumer_groups"].items())
    ]


@answers("groups_of_missing_topics", "group-topic-gone", "group_name topic epoch")
def group_of_a_topic_that_is_gone() -> Rows:
    epochs = {name: item["epoch"] for name, item in facts("group-topic-gone")["groups"].items()}
    found = told("group-topic-gone", "group_topic_missing")
    return [(f["group"], f["topic"], epochs[f["group"]]) for f in found]


@answers("historical_offsets", "legacy-august", "group_name topic partition item_offset")
def offsets_of_august() -> Rows:
    found = truth("legacy-august")["historical_maximum_offsets"]
    return [
        (*where.split("/"), int(partition), offset)
        for where, offsets in found.items()
        for partition, offset in offsets.items()
    ]


@answers("index_findings", "index-of-another-segment", "path position code")
def index_of_the_neighbour() -> Rows:
    name = "index-of-another-segment"
    return [(f["path"], f["position"], f["code"]) for f in told(name, "index_entry_mismatch")]


@answers("index_findings", "index-larger-than-log", "path position code")
def index_beyond_the_log() -> Rows:
    name = "index-larger-than-log"
    return [(f["path"], f["position"], f["code"]) for f in told(name, "index_entry_beyond_log")]


@answers("keys_with_most_versions", SMALL, "key versions", ordered=True, topic="quotes", limit="5")
def longest_streams() -> Rows:
    (part,) = truth(SMALL)["topics"]["quotes"]["partitions"]
    return sorted(part["streams"].items(), key=lambda item: (-item[1], item[0]))[:5]


@answers("lag", SMALL, "group_name topic partition lag")
def log_end_less_committed() -> Rows:
    ends = {(topic, part["partition"]): part["log_end"] for topic, part in partitions(SMALL)}
    return [
        (group, topic, partition, ends[topic, partition] - offset)
        for group, topic, partition, offset, _ in committed(SMALL)
    ]


@answers("largest_records", SMALL, "bytes", ordered=True, limit="7")
def longest_frames() -> Rows:
    logs = help_.log_dir(SMALL).glob("*/*.log")
    lengths = sorted((length for log in logs for _, _, length in frames(log)), reverse=True)
    return [(length,) for length in lengths[:7]]


HISTORY = {"group": "dispatch", "topic": "shipments", "partition": "1"}


@answers("offset_history", "offset-goes-backwards", "revision", ordered=True, **HISTORY)
def revisions_one_by_one() -> Rows:
    return [(revision,) for revision in facts("offset-goes-backwards")["revisions_in_log"]]


@answers(
    "offset_history", "values-at-the-edge", "revision", ordered=True, group="edge", partition="0"
)
def revisions_beyond_signed_numbers() -> Rows:
    revisions = facts("values-at-the-edge")["revision_order_of_edge"]
    return [(number(int(revision)),) for revision in revisions]


@answers(
    "offsets_moved_back",
    "offset-goes-backwards",
    "group_name topic partition previous_offset revision committed_offset change path position",
)
def who_moved_it_back() -> Rows:
    found = told("offset-goes-backwards", "snapshot_offset_regression")
    return [
        (
            *(f[key] for key in ("group", "topic", "partition", "current", "revision")),
            f["recovered"],
            f["recovered"] - f["current"],
            f["path"],
            f["position"],
        )
        for f in found
    ]


@answers(
    "offsets_reset_by_epoch",
    "recreated-group-wrong-order",
    "partition epoch_before offset_before epoch offset_after",
)
def began_again() -> Rows:
    """The newest snapshot of the older life, by its payload, against that of the new one."""
    payloads = [
        json.loads(record.payload)
        for log in help_.log_dir("recreated-group-wrong-order").glob("__consumer_offsets/*.log")
        for _, record, _ in frames(log)
    ]
    snapshots = [item for item in payloads if item["type"] == "offset_snapshot"]
    old = max((s for s in snapshots if s["epoch"] == 1), key=lambda s: int(s["revision"]))
    before = {item["partition"]: item["offset"] for item in old["offsets"]}
    group = facts("recreated-group-wrong-order")["groups"]["settlement-3"]
    after = group["offsets"]["orders"]
    return [(int(p), 1, before[int(p)], group["epoch"], after[p]) for p in after]


@answers(
    "offsets_without_registration",
    "registration-lost-first-segment-missing",
    "group_name topic snapshots highest_epoch",
)
def nobody_registered() -> Rows:
    name = "registration-lost-first-segment-missing"
    known = facts(name)
    return [
        (
            f["group"],
            f["topic"],
            known["orphan_records"],
            known["registration_floor"][f["group"]] - 1,
        )
        for f in told(name, "offsets_without_registration")
    ]


@answers(
    "open_transactions",
    "shop-healthy",
    "transactional_id producer epoch state created_at updated_at staged_records staged_offsets",
)
def not_decided_or_not_finished() -> Rows:
    return [
        (
            transactional_id,
            *(item[key] for key in ("producer", "epoch", "state", "created_at", "updated_at")),
            len(item["staged_messages"] or ()),
            len(item["staged_offsets"] or ()),
        )
        for transactional_id, item in undecided("shop-healthy")
    ]


@answers("orphan_directories", topic_that_nobody_declared, "topic storage_partitions files")
def directory_of_last_year() -> Rows:
    return [("visits-2025", 1, sum(1 for _ in (help_.log_dir(SMALL) / "visits").iterdir()))]


@answers("partitions", SMALL, "topic partition first_offset log_end hwm_checkpoint record_count")
def partitions_of_the_workload() -> Rows:
    keys = ("partition", "first_offset", "log_end", "hwm_checkpoint", "records")
    return [(topic, *(part[key] for key in keys)) for topic, part in partitions(SMALL)]


@answers("partitions", SMALL, "partition segment_count", topic="orders")
def partitions_of_one_topic() -> Rows:
    found = truth(SMALL)["topics"]["orders"]["partitions"]
    return [(part["partition"], len(part["segments"])) for part in found]


@answers(
    "partitions_without_marker",
    "open-transaction-without-journal",
    "transactional_id epoch topic partition open_records first_open_offset",
)
def no_journal_knows_it() -> Rows:
    found = told("open-transaction-without-journal", "txn_record_unresolved")
    first = facts("open-transaction-without-journal")["last_stable_offset"]["orders/0"]
    ids = {(f["transactional_id"], f["epoch"]) for f in found}
    return [(*one, "orders", 0, len(found), first) for one in ids]


@answers("persistence_unit", "segment-name-other-base", "path size")
def all_but_the_lock() -> Rows:
    files = case("segment-name-other-base")["files"]["list"]
    return [(f["path"], f["size"]) for f in files if f["path"] != ".cursus.lock"]


@answers("producer_gaps", producer_skips_and_repeats, "topic partition producer gaps duplicates")
def skipped_and_repeated() -> Rows:
    sequences = last_sequences()
    assert sequences[-1] == sequences[-2] + 1, "the skip is one that was not there"
    return [("orders", 0, "desk-1", 1, 0), ("orders", 0, "desk-2", 0, 1)]


@answers("producers_only_in_checkpoint", "damaged-missing-segment", "topic partition producer")
def producers_without_records() -> Rows:
    """Known to the checkpoint by the ground truth, and in no record that is left."""
    found: Rows = []
    for topic, part in partitions("damaged-missing-segment"):
        pattern = f"{topic}/partition_{part['partition']}_*.log"
        logs = help_.log_dir("damaged-missing-segment").glob(pattern)
        left = {record.producer_id.decode() for log in logs for _, record, _ in frames(log)}
        known = part["producers_checkpoint"]
        found += [(topic, part["partition"], name) for name in known if name not in left]
    assert found
    return found


@answers("records_by_topic", SMALL, "topic segments records bytes", ordered=True)
def sums_of_topics() -> Rows:
    sums: dict[str, list[int]] = {}
    for topic, part in partitions(SMALL):
        for item in part["segments"]:
            row = sums.setdefault(topic, [0, 0, 0])
            row[0] += 1
            row[1] += item["records"]
            row[2] += item["bytes"]
    return [(topic, *row) for topic, row in sorted(sums.items())]


@answers(
    "records_of_key", SMALL, "aggregate_version", ordered=True, topic="quotes", key="quote-0002"
)
def versions_of_one_aggregate() -> Rows:
    (part,) = truth(SMALL)["topics"]["quotes"]["partitions"]
    return [(version,) for version in range(1, part["streams"]["quote-0002"] + 1)]


@answers("revision_gaps", "values-at-the-edge", "group_name after_revision revision explained")
def revisions_that_nobody_wrote() -> Rows:
    numbers = [int(text) for text in facts("values-at-the-edge")["revision_order_of_edge"]]
    pairs = pairwise(numbers)
    return [("edge", number(a), number(b), 0) for a, b in pairs if b - a > 1]


SEAMS = "topic partition base_offset previous_last first_offset seam missing_offsets"


@answers("segment_seams", "damaged-missing-segment", SEAMS)
def hole_of_one_segment() -> Rows:
    (fault,) = case("damaged-missing-segment")["fault"]
    first, last = fault["offsets"]
    return [("orders", 0, last + 1, first - 1, last + 1, "gap", fault["records"])]


@answers("segment_seams", "merge-leftover-overlap", "base_offset previous_last seam")
def offsets_that_are_there_twice() -> Rows:
    found = told("merge-leftover-overlap", "segment_offsets_overlap")
    return [(f["first"], f["previous_last"], "overlap") for f in found]


SEGMENTS = "base_offset active compacted first_offset last_offset record_count size"


def segments_of(parts: list[dict[str, Any]]) -> Rows:
    return [
        (
            item["base_offset"],
            int(item["active"]),
            int(item["compacted"]),
            item["first_offset"],
            item["last_offset"],
            item["records"],
            item["bytes"],
        )
        for part in parts
        for item in part["segments"]
    ]


@answers("segments", SMALL, SEGMENTS)
def all_segments() -> Rows:
    return segments_of([part for _, part in partitions(SMALL)])


@answers("segments", SMALL, SEGMENTS, ordered=True, topic="orders", partition="1")
def segments_of_one_partition() -> Rows:
    return segments_of(truth(SMALL)["topics"]["orders"]["partitions"][1:])


@answers("space", "segment-name-other-base", "topic files bytes")
def bytes_of_files() -> Rows:
    """By topic and suffix, which are the kinds of this fixture."""
    sums: dict[tuple[str | None, str], list[int]] = {}
    for item in case("segment-name-other-base")["files"]["list"]:
        folder, _, file = item["path"].rpartition("/")
        row = sums.setdefault((folder or None, file.rpartition(".")[2]), [0, 0])
        row[0] += 1
        row[1] += item["size"]
    return [(topic, *row) for (topic, _), row in sums.items()]


@answers(
    "staged_offsets",
    "shop-healthy",
    "transactional_id state group_name topic partition staged_offset committed_offset",
)
def what_would_be_committed() -> Rows:
    now = {row[:3]: row[3] for row in committed("shop-healthy")}
    return [
        (
            transactional_id,
            item["state"],
            *(staged[key] for key in ("group", "topic", "partition", "offset")),
            now.get((staged["group"], staged["topic"], staged["partition"])),
        )
        for transactional_id, item in undecided("shop-healthy")
        for staged in item["staged_offsets"] or ()
    ]


@answers("steps", "damaged-length-bit-flip", "step outcome", ordered=True)
def second_step_is_the_end() -> Rows:
    end = case("damaged-length-bit-flip")["broker"]["step"]
    words = ["passed"] * (end - 1) + ["refuses"] + ["not_reached"] * (5 - end)
    return list(enumerate(words, 1))


@answers(
    "topics",
    SMALL,
    "topic declared partitions lifecycle_epoch cleanup_policy idempotent event_sourcing",
    ordered=True,
)
def definitions_of_topics() -> Rows:
    found = []
    for topic, item in sorted(truth(SMALL)["topics"].items()):
        known = item["definition"]
        flags = (int(known["idempotent"]), int(known["event_sourcing"]))
        policy = known["policy"]["cleanup_policy"]
        found.append((topic, 1, known["partitions"], known["lifecycle_epoch"], policy, *flags))
    return found


@answers("transaction_history", "journal-last-length-huge", "transactional_id epoch")
def frames_before_the_damage() -> Rows:
    known = facts("journal-last-length-huge")
    ((transactional_id, item),) = known["transactions"].items()
    return [(transactional_id, item["epoch"])] * known["journal_frames"]


@answers("what_a_start_does", "zero-tail-of-three-bytes", "kind path position")
def one_tail_is_cut() -> Rows:
    repairs = case("zero-tail-of-three-bytes")["broker"]["repairs"]
    return [("cut_log", item["path"], item["position"]) for item in repairs]


@answers("what_is_lost", "damaged-missing-segment", "code effect records first last")
def records_of_one_segment() -> Rows:
    found = told("damaged-missing-segment", "segment_offsets_gap")
    keys = ("records", "first_offset", "last_offset")
    return [(f["code"], f["effect"], *(f["lost"][key] for key in keys)) for f in found]


@answers("what_is_lost", "shop-killed", "path position bytes first")
def record_that_was_torn() -> Rows:
    (fault,) = [case("shop-killed")["fault"][0]]
    offset = fault["lost_record"]["offset"]
    return [(fault["file"], fault["torn_at_byte"], fault["torn_bytes"], offset)]


#: Short names of columns in the table above.
SHORT = {
    "what_is_lost": {
        "records": "lost_records",
        "first": "lost_first_offset",
        "last": "lost_last_offset",
        "bytes": "lost_bytes",
    },
    "behind_damage": {"first": "first_offset", "last": "last_offset"},
}


def answer(query: str, fixture: str, columns: str, given: dict[str, str]) -> Rows:
    short = SHORT.get(query, {})
    connection = open_index(str(index_of(fixture)))
    try:
        names, found = queries_catalogue.run(connection, queries_catalogue.get(query), given)
        places = [names.index(short.get(column, column)) for column in columns.split()]
        return [tuple(row[place] for place in places) for row in found]
    finally:
        connection.close()


@pytest.mark.parametrize(
    "item", CASES, ids=lambda c: f"{c.query}-{c.fixture}-{c.expected.__name__}"
)
def test_the_answer_is_the_known_one(item: Case) -> None:
    found = answer(item.query, item.fixture, item.columns, item.given)
    expected = item.expected()
    if not item.ordered:
        found, expected = sorted(found, key=repr), sorted(expected, key=repr)
    assert found == expected


def test_every_query_has_a_known_answer_that_is_not_empty() -> None:
    asked = {item.query for item in CASES if item.expected is not nothing}
    assert asked == set(queries_catalogue.named_queries())


def test_history_of_transactions_ends_where_the_workload_ended() -> None:
    found = answer("transaction_history", SMALL, "transactional_id epoch revision state", {})
    known = truth(SMALL)["transactions"]
    assert len(found) == truth(SMALL)["journal"]["frames"]
    assert {row[0]: row[1:] for row in found} == {
        name: (item["epoch"], item["revision"], item["state"]) for name, item in known.items()
    }
    ours = answer("transaction_history", SMALL, "transactional_id", {"id": "batch-open"})
    assert ours
    assert set(ours) == {("batch-open",)}


def test_every_parameter_narrows() -> None:
    """A value that nothing has leaves no row: no parameter is ignored."""
    for query in queries_catalogue.named_queries().values():
        required = {item.name: "nobody" for item in query.parameters if item.required}
        for item in query.parameters:
            if item.name != "limit":
                given = required | {item.name: "4294967295" if item.integer else "nobody"}
                assert answer(query.name, "shop-healthy", "", given) == [], (query.name, item.name)
