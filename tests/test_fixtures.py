"""Every folder below fixtures/ with a case.json is a test: the plan against its ground truth.

A new folder is a new test, with no code. What a case expects is compared key by
key; a fact, a ``must_not`` or a member of a finding that nobody here knows how to
compare fails the test, so that no expectation is ever skipped in silence.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from cursus import layout
from cursus.evidence.walk import LogDirectory
from cursus.findings import CATALOGUE, Finding
from cursus.formats import canonical_json, timestamps, topic_manifest
from cursus.replay.interfaces import Entry, RecordBatch
from cursus.replay.segments import PartitionLog
from cursus.replay.startup import Plan, plan
from cursus.replay.transactions import TransactionIndex, is_visible, last_stable_offset
from inspect_db import fixtures, index_check, verdict

ROOT = Path(__file__).resolve().parent.parent / "fixtures"
FIXTURES = fixtures.find(ROOT)
NOBODY = 65534
INTERNAL = layout.INTERNAL_TOPIC


@dataclass
class Seen:
    """One record that the plan handed to its sink."""

    path: str
    topic: str
    partition: int
    position: int
    offset: int
    reachable: bool
    deleted: bool
    digest: bytes
    transactional: tuple[bytes, int, bytes, bytes]


@dataclass
class Result:
    """Everything that the comparers look at."""

    fixture: fixtures.Fixture
    log_dir: Path
    plan: Plan
    entries: tuple[Entry, ...]
    seen: list[Seen]
    seconds: float
    peak: int
    index_reports: list[index_check.IndexReport] = field(default_factory=list)

    @property
    def application(self) -> dict[str, PartitionLog]:
        """Partitions of application topics that have a log, as ``topic/partition``."""
        return {
            f"{topic}/{partition}": log
            for (topic, partition), log in self.plan.partitions.items()
            if topic != INTERNAL and log.segments
        }

    def only(self) -> PartitionLog:
        """The only partition that the case is about: the one with a fault, or the only one."""
        logs = self.application
        for fault in self.fixture.case["fault"]:
            for log in logs.values():
                if any(scan.segment.path == fault["path"] for scan in log.segments):
                    return log
                if str(fault["path"]).replace(".index", ".log") in {
                    scan.segment.path for scan in log.segments
                }:
                    return log
        assert len(logs) == 1, f"which partition does the fact mean? {sorted(logs)}"
        return next(iter(logs.values()))

    @cached_property
    def page(self) -> list[str]:
        return list(verdict.page(self.plan))


def judge(fixture: fixtures.Fixture, log_dir: Path) -> Result:
    """Run the plan on a materialised copy and prove that it left no trace."""
    seen: list[Seen] = []

    def sink(batch: RecordBatch) -> None:
        segment = batch.segment
        for item in batch:
            record = item.record
            seen.append(
                Seen(
                    segment.path,
                    segment.topic,
                    segment.partition,
                    item.position,
                    record.offset,
                    batch.reachable,
                    segment.deleted,
                    hashlib.sha256(repr(record).encode()).digest(),
                    (
                        record.transactional_id,
                        record.epoch,
                        record.transaction_state,
                        record.transaction_marker,
                    ),
                )
            )

    before = tree(log_dir)
    small = fixture.case["files"]["bytes"] < 100_000
    if small:
        tracemalloc.start()
    # Of this process: a loaded machine is no slow plan.
    start = time.process_time()
    with LogDirectory.at(str(log_dir)) as evidence:
        found = plan(evidence, as_of=fixture.as_of, sink=sink)
        reports = list(index_check.check_indexes(found, evidence))
        entries = tuple(evidence.entries)
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1] if small else 0
    tracemalloc.stop()
    assert tree(log_dir) == before, "the plan changed the directory"
    return Result(fixture, log_dir, found, entries, seen, seconds, peak, reports)


def tree(root: Path) -> list[tuple[object, ...]]:
    """Names, types, modes, times and contents below ``root``."""
    found: list[tuple[object, ...]] = []
    for folder, directories, files in os.walk(root):
        for name in sorted([*directories, *files]):
            path = Path(folder, name)
            status = path.lstat()
            content = ""
            if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.append(
                (
                    str(path.relative_to(root)),
                    status.st_mode,
                    status.st_size,
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                    content,
                )
            )
    return sorted(found, key=str)


# -- what a finding must say -------------------------------------------------------------

#: Members that say nothing about the finding itself.
NOT_COMPARED = {"also_named", "case", "note", "optional", "count", "last_path"}


def names_of(code: str) -> set[str]:
    """The code and the other names that the specification has for it."""
    return {code, *CATALOGUE[code].also_named}


def number(value: object) -> object:
    """Ground truth writes numbers above 2^53 as text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def fits(result: Result, item: Finding, expected: Mapping[str, Any]) -> bool:
    """Is this the finding that is expected?"""
    codes = {expected["code"]}
    variants = result.fixture.case.get("accepted_variants", {})
    place = f"{expected['path']}@{expected.get('position')}"
    codes |= set(variants.get("finding_codes", {}).get(place, ()))
    if not codes & names_of(item.code) or item.path != expected["path"]:
        return False
    return all(
        FINDING_MEMBERS[name](result, item, value)
        if name in FINDING_MEMBERS
        else same_detail(item, name, value)
        for name, value in expected.items()
        if name not in NOT_COMPARED | {"code", "path"}
    )


def same_detail(item: Finding, name: str, value: object) -> bool:
    assert name in item.detail, f"{item.code} says nothing about {name}"
    return bool(item.detail[name] == number(value))


def same_position(result: Result, item: Finding, value: object) -> bool:
    anywhere = result.fixture.case.get("accepted_variants", {}).get("position_any")
    return bool(anywhere) or item.position == value


def same_lost(result: Result, item: Finding, value: Mapping[str, int]) -> bool:
    return item.lost is not None and all(
        getattr(item.lost, name) == wanted for name, wanted in value.items()
    )


def same_topic(result: Result, item: Finding, value: str) -> bool:
    return item.detail.get("topic", item.path) == value


def records_before(result: Result, item: Finding, value: int) -> bool:
    scans = [scan for log in result.application.values() for scan in log.segments]
    return any(scan.segment.path == item.path and scan.record_count == value for scan in scans)


FINDING_MEMBERS: dict[str, Callable[[Result, Finding, Any], bool]] = {
    "position": same_position,
    "severity": lambda result, item, value: item.severity == value,
    "effect": lambda result, item, value: item.effect == value,
    "step": lambda result, item, value: item.step == value,
    # The length that was found in a prefix, or the bytes that the finding covers.
    "length": lambda result, item, value: value in {item.length, item.detail.get("found_length")},
    "lost": same_lost,
    "topic": same_topic,
    "lifecycle_epoch": lambda result, item, value: item.detail["epoch"] == value,
    "version": lambda result, item, value: result.plan.manifest.version == value,
    "readable_records_before": records_before,
}


def compare_findings(result: Result) -> list[str]:
    """Every expected finding is there once, and nothing else of weight."""
    wrong = []
    left = list(result.plan.findings)
    for expected in result.fixture.case["inspector"]["findings"]:
        matching = [item for item in left if fits(result, item, expected)]
        if "count" in expected:
            matching = [item for item in left if expected["code"] in names_of(item.code)]
            if len(matching) != expected["count"] or matching[-1].path != expected["last_path"]:
                wrong.append(f"expected {expected}, got {len(matching)} of them")
            counted = set(matching)
            left = [item for item in left if item not in counted]
        elif matching:
            left.remove(matching[0])
        elif not expected.get("optional"):
            near = [item for item in result.plan.findings if item.path == expected["path"]]
            wrong.append(f"missing {expected}; at that path: {near}")
    wrong += [f"not expected: {item}" for item in left if item.severity != "info"]
    return wrong


# -- what a broker does ------------------------------------------------------------------


def compare_broker(result: Result) -> list[str]:
    """Verdict, step, code, path and position."""
    broker = result.fixture.case["broker"]
    variants = result.fixture.case.get("accepted_variants", {})
    words = {broker["effect"], *variants.get("effects", ())}
    wanted = {"starts_clean" if word == "starts" else word for word in words}
    wrong = []
    if result.plan.verdict not in wanted:
        wrong.append(f"verdict {result.plan.verdict}, expected {wanted}")
    if broker["code"] is not None:
        refuses = broker["effect"] == "refuses"
        effect = {
            "refuses": "refuses",
            "undetermined": "unknown",
            "starts_with_damage": "data_missing",
            "starts_with_repairs": "repairs",
        }[broker["effect"]]
        candidates = [item for item in result.plan.findings if item.effect == effect]
        first = candidates[:1] if refuses else candidates
        if not any(is_cause(result, item, broker) for item in first):
            wrong.append(f"first cause {first[:1]}, expected {broker}")
    if broker["effect"] == "refuses":
        outcomes = [step.outcome for step in result.plan.steps]
        at = broker["step"] - 1
        if outcomes[at] != "refuses" or set(outcomes[at + 1 :]) - {"not_reached"}:
            wrong.append(f"outcomes {outcomes}, expected a refusal at step {broker['step']}")
        if result.plan.actions:
            wrong.append("a start that refuses does nothing, but actions are listed")
    wrong += compare_actions(result, broker)
    if "text" in broker and broker["text"] not in result.plan.consumers.status.failure:
        wrong.append(f"failure text {result.plan.consumers.status.failure!r}")
    if "phase" in broker and broker["phase"] != result.plan.consumers.status.phase:
        wrong.append(f"phase {result.plan.consumers.status.phase}")
    return wrong


def is_cause(result: Result, item: Finding, broker: Mapping[str, Any]) -> bool:
    anywhere = result.fixture.case.get("accepted_variants", {}).get("position_any")
    return (
        broker["code"] in names_of(item.code)
        and item.step == broker["step"]
        and broker["path"] in {None, item.path}
        and (
            bool(anywhere)
            or broker["path"] is None
            or item.position == broker.get("position", item.position)
        )
    )


def compare_actions(result: Result, broker: Mapping[str, Any]) -> list[str]:
    cuts = {
        (action.path, action.position)
        for action in result.plan.actions
        if action.kind in {"cut_log", "cut_journal"}
    }
    expected = {(item["path"], item["position"]) for item in broker.get("repairs", ())}
    wrong = []
    if cuts != expected and broker["effect"] != "refuses":
        wrong.append(f"cuts {cuts}, expected {expected}")
    for work in broker.get("recovery_work", ()):
        if not any(fits(result, item, work) for item in result.plan.findings):
            wrong.append(f"recovery work is missing: {work}")
    return wrong


# -- facts -------------------------------------------------------------------------------

Check = Callable[[Result, Any], object]
FACTS: dict[str, Check] = {}


def fact(*names: str) -> Callable[[Check], Check]:
    """Register what the inspector says for a fact; it must equal the expectation."""

    def register(check: Check) -> Check:
        for name in names:
            assert name not in FACTS
            FACTS[name] = check
        return check

    return register


def texts(value: Any) -> Any:
    """JSON has text keys, and text for large numbers."""
    if isinstance(value, Mapping):
        return {str(name): texts(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [texts(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and value > 2**53:
        return str(value)
    return value


@fact("decoded_records", "records_on_disk")
def decoded_records(result: Result, expected: Any) -> object:
    counts = Counter(
        f"{item.topic}/{item.partition}"
        for item in result.seen
        if item.topic != INTERNAL and (item.reachable or result.fixture.name == "legacy-august")
    )
    return dict(counts) if isinstance(expected, dict) else counts.total()


@fact("declared")
def declared(result: Result, expected: Any) -> object:
    return sorted(result.plan.manifest.by_name)


@fact("names_equal_without_case")
def names_equal_without_case(result: Result, expected: Any) -> object:
    same: dict[str, list[str]] = {}
    for name in sorted(result.plan.manifest.by_name):
        same.setdefault(name.lower(), []).append(name)
    return [names for names in same.values() if len(names) > 1]


@fact("partitions_present")
def partitions_present(result: Result, expected: Any) -> object:
    return [log.partition for log in result.application.values()]


@fact("topic_directories")
def topic_directories(result: Result, expected: Any) -> object:
    found = [name for name, topic in result.plan.topics.topics.items() if topic.directory]
    return len(found) if isinstance(expected, int) else found


@fact("groups")
def groups(result: Result, expected: Mapping[str, Any]) -> object:
    found = {}
    for group in result.plan.consumers.groups.values():
        wanted = expected.get(group.name, {})
        found[group.name] = {
            name: value for name, value in group_of(group).items() if name in wanted
        }
    return texts(found)


def group_of(group: Any) -> dict[str, Any]:
    return {
        "epoch": group.epoch,
        "topic": group.topic,
        "partition_count": group.partition_count,
        "offsets": {topic: offsets for topic, offsets in group.offsets.items() if offsets},
        "revisions": group.revisions,
    }


@fact("absent_groups")
def absent_groups(result: Result, expected: list[str]) -> object:
    return [name for name in expected if name not in result.plan.consumers.groups]


@fact("group_count")
def group_count(result: Result, expected: Any) -> object:
    return len(result.plan.consumers.groups)


@fact("group_names_except_the_longest")
def group_names(result: Result, expected: list[str]) -> object:
    names = sorted(result.plan.consumers.groups, key=len)[:-1]
    return expected if sorted(names) == sorted(expected) else names


@fact("longest_name_bytes")
def longest_name(result: Result, expected: Any) -> object:
    return max(len(name.encode()) for name in result.plan.consumers.groups)


@fact("committed_offset_of_name")
def committed_offset_of_name(result: Result, expected: Mapping[str, int]) -> object:
    found = {}
    for name in expected:
        (offsets,) = result.plan.consumers.groups[name].offsets.values()
        (found[name],) = offsets.values()
    return found


@fact("orphan_records", "restored_groups", "restored_offsets", "replayed_records")
def counter(result: Result, expected: Any) -> object:
    raise AssertionError("compared by name")


def _counter(name: str) -> Check:
    return lambda result, expected: getattr(result.plan.consumers.status, name)


for _name in ("orphan_records", "restored_groups", "restored_offsets", "replayed_records"):
    FACTS[_name] = _counter(_name)


@fact("corrupt_records")
def corrupt_records(result: Result, expected: Any) -> object:
    """Of the inspector, which goes on; a broker stops at the first."""
    rows = result.plan.consumers.rows
    return sum(row.state == "live" and row.disposition == "rejected" for row in rows)


@fact("decodable_records")
def decodable_records(result: Result, expected: Any) -> object:
    rows = result.plan.consumers.rows
    return sum(row.record is not None and row.disposition != "rejected" for row in rows)


@fact("dispositions")
def dispositions(result: Result, expected: list[dict[str, Any]]) -> object:
    found = {(row.path, row.position): row.disposition for row in result.plan.consumers.rows}
    return [item | {"disposition": found[item["path"], item["position"]]} for item in expected]


@fact("registration_floor")
def registration_floor(result: Result, expected: Mapping[str, int]) -> object:
    return {name: result.plan.consumers.floors[name] for name in expected}


@fact("revisions_in_log")
def revisions_in_log(result: Result, expected: Any) -> object:
    regressed = next(f for f in result.plan.findings if f.code == "snapshot_offset_regression")
    rows = result.plan.consumers.rows
    return sorted(
        row.record.revision
        for row in rows
        if row.record is not None
        and row.record.type == "offset_snapshot"
        and row.record.group == regressed.detail["group"]
    )


@fact("regressions")
def regressions(result: Result, expected: Any) -> object:
    return sum(item.code == "snapshot_offset_regression" for item in result.plan.findings)


@fact("revision_order_of_edge")
def revision_order(result: Result, expected: Any) -> object:
    rows = result.plan.consumers.rows
    found = {
        row.record.revision
        for row in rows
        if row.record is not None
        and row.record.group == "edge"
        and row.record.type == "offset_snapshot"
        and row.record.epoch == result.plan.consumers.groups["edge"].epoch
    }
    return [str(value) for value in sorted(found)]


@fact("exact_offset_in_revision_9223372036854775807")
def exact_offset(result: Result, expected: Any) -> object:
    rows = result.plan.consumers.rows
    offsets = {
        item.offset
        for row in rows
        if row.record is not None and row.record.revision == 9223372036854775807
        for item in row.record.offsets
    }
    return expected if int(expected) in offsets else offsets


@fact("special_files")
def special_files(result: Result, expected: Any) -> object:
    return sum(entry.type not in {"file", "directory"} for entry in result.entries)


@fact("log_end", "inspector_log_end")
def log_end(result: Result, expected: Any) -> object:
    return result.only().log_end


@fact("log_end_after")
def log_end_after(result: Result, expected: Any) -> object:
    return {name: result.application[name].next_offset for name in expected}


@fact("hwm_after")
def hwm_after(result: Result, expected: Any) -> object:
    found = {f"{t}/{p}": item.effective for (t, p), item in result.plan.hwm.items()}
    return {name: found[name] for name in expected}


@fact("hwm_file")
def hwm_file(result: Result, expected: Any) -> object:
    log = result.only()
    return result.plan.hwm[log.topic, log.partition].stored


@fact("index_entries")
def index_entries(result: Result, expected: Any) -> object:
    return sum(report.entries for report in result.index_reports)


@fact("index_entries_valid")
def index_entries_valid(result: Result, expected: Any) -> object:
    return sum(report.valid for report in result.index_reports)


@fact("segments")
def segments(result: Result, expected: Any) -> object:
    return len(result.only().segments)


@fact("offset_gaps_between_segments")
def offset_gaps(result: Result, expected: Any) -> object:
    return sum(item.code == "segment_offsets_gap" for item in result.plan.findings)


@fact("distinct_offsets")
def distinct_offsets(result: Result, expected: Any) -> object:
    log = result.only()
    return len({item.offset for item in of_partition(result, log)})


@fact("identical_copies")
def identical_copies(result: Result, expected: Any) -> object:
    copies = Counter((item.offset, item.digest) for item in of_partition(result, result.only()))
    return sum(count - 1 for count in copies.values())


def of_partition(result: Result, log: PartitionLog) -> Iterator[Seen]:
    return (
        item
        for item in result.seen
        if item.topic == log.topic and item.partition == log.partition and item.reachable
    )


@fact("last_good_offset")
def last_good_offset(result: Result, expected: Any) -> object:
    return result.only().segments[-1].last_offset


@fact("complete_frames_behind_the_damage")
def frames_behind(result: Result, expected: Any) -> object:
    return [
        {"position": item.position, "offset": item.offset}
        for item in result.seen
        if not item.reachable
    ]


@fact("bytes_behind_the_damage")
def bytes_behind(result: Result, expected: Any) -> object:
    scan = result.only().segments[-1]
    return scan.segment.size - scan.end_position


@fact("unreachable_offsets")
def unreachable_offsets(result: Result, expected: Any) -> object:
    found: dict[str, list[int]] = {}
    for item in result.seen:
        if not item.reachable:
            found.setdefault(f"{item.topic}/{item.partition}", []).append(item.offset)
    return found


@fact("bytes_lost_by_the_repair", "repaired_bytes")
def repaired_bytes(result: Result, expected: Any) -> object:
    return sum(
        item.lost.bytes or 0
        for item in result.plan.findings
        if item.effect == "repairs" and item.lost is not None
    )


@fact("unread_files")
def unread_files(result: Result, expected: Any) -> object:
    return [item.path for item in result.plan.findings if item.code == "file_unreadable"]


@fact("records_at_stake")
def records_at_stake(result: Result, expected: Any) -> object:
    topics = result.plan.topics.topics
    return sum(
        log.record_count
        for (topic, _), log in result.plan.partitions.items()
        if topics[topic].state == "reset_pending"
    )


@fact("healthy_topics")
def healthy_topics(result: Result, expected: Any) -> object:
    ill = {item.path.partition("/")[0] for item in result.plan.findings if item.severity != "info"}
    return sorted(name for name in result.plan.manifest.by_name if name not in ill)


@fact("topics_in_first_value", "topics_of_older_manifest")
def topics_as_evidence(result: Result, expected: Any) -> object:
    return sorted(result.plan.manifest.names_as_evidence)


@fact("bytes_behind_first_value")
def bytes_behind_value(result: Result, expected: Any) -> object:
    data = (result.log_dir / layout.MANIFEST).read_bytes()
    _, end = canonical_json.parse_prefix(data)
    return len(data) - len(data[:end].rstrip()) - len("\n")


@fact("declared_topics")
def declared_topics(result: Result, expected: Any) -> object:
    return len(result.plan.manifest.definitions or ())


@fact("manifest_bytes")
def manifest_bytes(result: Result, expected: Any) -> object:
    return next(entry.size for entry in result.entries if entry.path == layout.MANIFEST)


# -- facts about transactions ------------------------------------------------------------


@fact("journal_frames")
def journal_frames(result: Result, expected: Any) -> object:
    return len(result.plan.journal.frames)


@fact("transactional_ids")
def transactional_ids(result: Result, expected: Any) -> object:
    return len(result.plan.journal.transactions)


@fact("transactions")
def transactions(result: Result, expected: Mapping[str, Any]) -> object:
    found = {}
    for name, state in result.plan.journal.transactions.items():
        whole = {
            "state": state.state,
            "epoch": state.epoch,
            "revision": state.revision,
            "producer": state.producer,
            "ready": state.ready,
            "expired": state.expired,
            "created_at": timestamps.canonical(state.created_at),
            "updated_at": timestamps.canonical(state.updated_at),
            "staged_messages": [
                {
                    "topic": item["Topic"],
                    "partition": item["Partition"],
                    "key": item["Message"]["Key"],
                    "seq": item["Message"]["SeqNum"],
                }
                for item in state.messages
            ]
            or None,
            "staged_offsets": [
                {
                    "group": item["Group"],
                    "topic": item["Topic"],
                    "partition": item["Partition"],
                    "offset": item["Offset"],
                }
                for item in state.offsets
            ]
            or None,
        }
        found[name] = {key: whole[key] for key in expected.get(name, ())}
    return found


@fact("transactions_after_start")
def transactions_after_start(result: Result, expected: Any) -> object:
    states = result.plan.journal.transactions.values()
    return dict(Counter("expired" if item.expired else item.state for item in states))


def decide(result: Result) -> Callable[[bytes, int], tuple[str, int] | None]:
    def decision(name: bytes, epoch: int) -> tuple[str, int] | None:
        state = result.plan.journal.decision(name.decode("utf-8", "surrogateescape"), epoch)
        return None if state is None else (state, epoch)

    return decision


def index_of(result: Result, name: str) -> tuple[TransactionIndex, PartitionLog]:
    log = result.application[name]
    return result.plan.transactions[log.topic, log.partition], log


@fact("last_stable_offset")
def stable_offset(result: Result, expected: Any) -> object:
    found = {}
    for name in expected:
        index, log = index_of(result, name)
        found[name] = last_stable_offset(
            index, decide(result), first_offset=log.log_start, high=log.next_offset
        )
    return found


def committed(result: Result, name: str) -> list[tuple[int, bool]]:
    index, log = index_of(result, name)
    stable = last_stable_offset(
        index, decide(result), first_offset=log.log_start, high=log.next_offset
    )
    found = []
    for item in of_partition(result, log):
        key_id, epoch, state, marker = item.transactional
        seen = item.offset < stable and is_visible(
            index,
            decide(result),
            key=(key_id, epoch),
            state=state,
            marker=marker,
            offset=item.offset,
            high=log.next_offset,
        )
        found.append((item.offset, seen))
    return found


@fact("read_committed_offsets")
def read_committed(result: Result, expected: Any) -> object:
    return {name: [offset for offset, seen in committed(result, name) if seen] for name in expected}


@fact("hidden_offsets")
def hidden_offsets(result: Result, expected: Any) -> object:
    return {
        name: [offset for offset, seen in committed(result, name) if not seen] for name in expected
    }


# -- facts of the captures ---------------------------------------------------------------


@fact("topic_definitions")
def topic_definitions(result: Result, expected: Mapping[str, Any]) -> object:
    found = {}
    for name, item in result.plan.manifest.by_name.items():
        policy = dict(topic_manifest.written_policy(item.policy))
        found[name] = {
            "event_sourcing": item.event_sourcing,
            "idempotent": item.idempotent,
            "lifecycle_epoch": item.lifecycle_epoch,
            "partitions": item.partitions,
            "policy": {
                key: texts(policy.get(key)) for key in expected.get(name, {}).get("policy", ())
            },
            "replication_factor": item.replication_factor,
            "revision": item.revision,
        }
    return found


@fact("lifecycle_markers")
def lifecycle_markers(result: Result, expected: Any) -> object:
    return {name: topic.marker_epoch for name, topic in result.plan.topics.topics.items()}


@fact("consumer_groups")
def consumer_groups(result: Result, expected: Any) -> object:
    found: dict[str, Any] = {}
    for group in result.plan.consumers.groups.values():
        values = group_of(group)
        values["committed"] = values.pop("offsets")
        found[group.name] = values | {"state": "live"}
    for name, epoch in result.plan.consumers.deleted.items():
        found[name] = {"epoch": epoch, "state": "deleted"}
    return texts(found)


@fact("replay_counters")
def replay_counters(result: Result, expected: Mapping[str, Any]) -> object:
    found = result.plan.consumers.status.as_dict()
    return {name: found[name] for name in expected}


@fact("consumer_records_on_disk")
def consumer_records_on_disk(result: Result, expected: Any) -> object:
    rows = result.plan.consumers.rows
    return dict(Counter(row.record.type for row in rows if row.record and row.state == "live"))


@fact("bare_offset_records")
def bare_offset_records(result: Result, expected: list[dict[str, Any]]) -> object:
    found = [
        {
            "log_partition": row.log_partition,
            "offset": row.log_offset,
            "shape": row.shape,
            "key": row.key.decode(),
        }
        for row in result.plan.consumers.rows
        if row.code == "unversioned_record"
    ]
    order = {(item["log_partition"], item["offset"]): at for at, item in enumerate(expected)}
    return sorted(found, key=lambda item: order.get((item["log_partition"], item["offset"]), -1))


@fact("version_1_records")
def version_1_records(result: Result, expected: list[dict[str, Any]]) -> object:
    words = {
        "group_registration": "registration",
        "offset_snapshot": "snapshot",
        "group_tombstone": "tombstone",
    }
    found = {
        (row.log_partition, row.log_offset): f"{words[row.record.type]} {row.record.group}"
        for row in result.plan.consumers.rows
        if row.record is not None
    }
    assert len(found) == len(expected)
    return [
        item | {"what": found.get((item["log_partition"], item["offset"]))} for item in expected
    ]


@fact("totals")
def totals(result: Result, expected: Any) -> object:
    application = [item for item in result.seen if item.topic != INTERNAL and item.reachable]
    return {
        "application_records_on_disk": sum(not item.transactional[3] for item in application),
        "control_records_on_disk": sum(bool(item.transactional[3]) for item in application),
        "transactional_data_records_on_disk": sum(
            bool(item.transactional[0]) and not item.transactional[3] for item in application
        ),
        "live_groups": len(result.plan.consumers.groups),
        "deleted_groups": len(result.plan.consumers.deleted),
    }


@fact("partitions")
def partitions(result: Result, expected: Mapping[str, Mapping[str, Any]]) -> object:
    found: dict[str, Any] = {}
    for (topic, partition), log in result.plan.partitions.items():
        wanted = expected.get(f"{topic}/{partition}", {})
        found[f"{topic}/{partition}"] = {
            name: PARTITION_FACTS[name](result, (topic, partition), log) for name in wanted
        }
    return found


def segment_facts(result: Result, key: tuple[str, int], log: PartitionLog) -> object:
    return [
        {
            "active": scan.segment.active,
            "base_offset": scan.segment.base,
            "bytes": scan.end_position,
            "compacted": scan.segment.gaps_allowed,
            "first_offset": scan.first_offset,
            "last_offset": scan.last_offset,
            "records": scan.record_count,
        }
        for scan in log.segments
    ]


def entries_of(producers: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    return {name: {"epoch": item.epoch, "seq": item.sequence} for name, item in producers.items()}


def producers_checkpoint(result: Result, key: tuple[str, int], log: PartitionLog) -> object:
    checkpoint = result.plan.producers[key].checkpoint
    return entries_of(checkpoint.producers) if checkpoint else None


def aggregate_bytes(result: Result, key: tuple[str, int], kind: layout.FileKind) -> int | None:
    """Size of an aggregate file, ``None`` where there is none."""
    for entry in result.entries:
        if entry.kind is kind and (entry.topic, entry.partition) == key:
            return entry.size
    return None


def versions(result: Result, key: tuple[str, int], log: PartitionLog) -> object:
    return {
        name.decode(): version for name, version in result.plan.aggregates[key].versions.items()
    }


def latest_snapshots(result: Result, key: tuple[str, int], log: PartitionLog) -> object:
    return {
        row.key.decode(): {"payload_bytes": row.payload_bytes, "version": row.version}
        for row in result.plan.aggregates[key].snapshots
        if row.current
    }


PartitionFact = Callable[[Result, tuple[str, int], PartitionLog], object]
PARTITION_FACTS: dict[str, PartitionFact] = {
    "log_start_base": lambda result, key, log: log.log_start,
    "first_offset": lambda result, key, log: log.first_offset,
    "last_offset": lambda result, key, log: log.log_end - 1 if log.record_count else None,
    "log_end": lambda result, key, log: log.next_offset,
    "records": lambda result, key, log: log.record_count,
    "hwm_checkpoint": lambda result, key, log: result.plan.hwm[key].stored,
    "segments": segment_facts,
    "producers_after_start": lambda result, key, log: entries_of(
        result.plan.producers[key].effective
    ),
    "producers_checkpoint": producers_checkpoint,
    "streams": versions,
    "stream_files": lambda result, key, log: (
        aggregate_bytes(result, key, layout.FileKind.AGGREGATE_INDEX) is not None
        and aggregate_bytes(result, key, layout.FileKind.AGGREGATE_KEYS) is not None
    ),
    "stream_index_entries": lambda result, key, log: (
        (aggregate_bytes(result, key, layout.FileKind.AGGREGATE_INDEX) or 0) // 32
    ),
    "snapshot_file": lambda result, key, log: (
        aggregate_bytes(result, key, layout.FileKind.AGGREGATE_SNAPSHOTS) is not None
    ),
    "snapshot_records": lambda result, key, log: len(result.plan.aggregates[key].snapshots),
    "latest_snapshots": latest_snapshots,
}


# -- what must not happen ----------------------------------------------------------------


def no_finding(*codes: str, **detail: object) -> Callable[[Result], bool]:
    def check(result: Result) -> bool:
        return not any(
            item.code in codes and all(item.detail.get(k) == v for k, v in detail.items())
            for item in result.plan.findings
        )

    return check


def holds(result: Result) -> bool:
    """Proven for every fixture: the plan returned, and the tree is as it was."""
    return True


def bounded(result: Result) -> bool:
    """Far below what the number in the file asks for."""
    return 0 < result.peak < 32 << 20


def quick(result: Result) -> bool:
    return result.seconds < 20


MUST_NOT: dict[str, Callable[[Result], bool]] = {
    "a traceback": holds,
    "treat the storage as fresh": lambda result: (
        result.plan.verdict == "refuses" and not result.plan.actions
    ),
    "list the directories as undeclared": no_finding("undeclared_persisted_topic"),
    "block: the run ends within seconds": quick,
    "compute a hash of a pipe": quick,
    "any finding of severity warning or error": lambda result: all(
        item.severity == "info" for item in result.plan.findings
    ),
    "markup of a name reaching a page unescaped": lambda result: all(
        line.isprintable() for line in result.page
    ),
    "cutting a name at NUL or at a line end in JSON output": lambda result: (
        {
            "a\0b",
            "tab\tnew\nline",
        }
        <= set(result.plan.consumers.groups)
    ),
    "treating the two spellings of \u00e9 as one name": lambda result: (
        "\u00e9 vs e\u0301" in result.plan.consumers.groups
    ),
    "report group_topic_missing for group watch": no_finding("group_topic_missing", group="watch"),
    "raise an error severity finding for an index": lambda result: all(
        item.severity == "info" for item in result.plan.findings if item.path.endswith(".index")
    ),
    "answer a lookup of offset 3 with another offset": lambda result: all(
        report.valid == 0 for report in result.index_reports if report.findings
    ),
    "allocate by the length found": bounded,
    "allocate memory by the length found": bounded,
    "allocate by the partition count": bounded,
    "a quadratic or unbounded conversion of the 5000-digit number": quick,
    "change or delete anything below orders": holds,
    "count the five records as live without a mark": lambda result: (
        result.plan.topics.topics["orders"].state == "reset_pending"
    ),
    "time that grows with the square of the number of topics": quick,
    "a terminal flooded with 9,998 lines by default": lambda result: len(result.page) < 60,
    "report unexpected_partition": no_finding("unexpected_partition"),
    "report an offset regression": no_finding("snapshot_offset_regression"),
    "change the mode": holds,
    "change the file": holds,
    "report segment_offsets_gap or an empty partition because a file could not be read": no_finding(
        "segment_offsets_gap", "declared_topic_partition_missing"
    ),
    "round any value": lambda result: (
        result.plan.consumers.groups["edge"].revisions["ledger"] == 2**64 - 1
    ),
    "report the file as ending at the first zero byte": lambda result: any(
        not item.reachable for item in result.seen
    ),
}


# -- the test ----------------------------------------------------------------------------


def compare(result: Result) -> list[str]:
    """Everything that is wrong, as sentences."""
    inspector = result.fixture.case["inspector"]
    wrong = compare_broker(result) + compare_findings(result)
    for name, expected in inspector["facts"].items():
        if name not in FACTS:
            wrong.append(f"nobody knows how to compare the fact {name}")
            continue
        found = FACTS[name](result, expected)
        if found != expected:
            wrong.append(f"{name}: {difference(found, expected)}")
    for text in inspector["must_not"]:
        if text not in MUST_NOT:
            wrong.append(f"nobody knows how to check that this does not happen: {text}")
        elif not MUST_NOT[text](result):
            wrong.append(f"this must not happen: {text}")
    return wrong


def difference(found: Any, expected: Any, path: str = "") -> str:
    """The first place where two values part, so that a failure can be read."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in sorted({*found, *expected}, key=str):
            if found.get(name, "absent") != expected.get(name, "absent"):
                return difference(
                    found.get(name, "absent"), expected.get(name, "absent"), f"{path}/{name}"
                )
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for at, (one, other) in enumerate(zip(found, expected, strict=True)):
            if one != other:
                return difference(one, other, f"{path}/{at}")
    return f"at {path or 'the top'} found {found!r}, expected {expected!r}"


def as_ordinary_user(check: Callable[[], list[str]]) -> list[str]:
    """Run ``check`` in a child as nobody where we are root: root reads files of mode 000."""
    if os.geteuid() != 0:
        return check()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            text = "\n".join(check())
        except BaseException:
            text = traceback.format_exc()
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text.splitlines()


def hides_something(fixture: fixtures.Fixture) -> bool:
    """Does a prepare step take a permission away?"""
    return any(step["op"] == "chmod" for step in steps_of(fixture))


def steps_of(fixture: fixtures.Fixture) -> list[dict[str, Any]]:
    return list(fixture.case.get("material", {}).get("prepare", ()))


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A temporary directory that other accounts may enter (``tmp_path`` is closed to them)."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_the_plan_says_what_the_case_says(fixture: fixtures.Fixture, open_directory: Path) -> None:
    log_dir = fixtures.materialise(fixture, open_directory)

    def check() -> list[str]:
        return compare(judge(fixture, log_dir))

    wrong = as_ordinary_user(check) if hides_something(fixture) else check()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_the_files_are_those_that_were_captured(fixture: fixtures.Fixture, tmp_path: Path) -> None:
    log_dir = fixtures.materialise(fixture, tmp_path)
    listing = fixture.case["files"]
    files = [path for path in log_dir.rglob("*") if path.is_file()]
    assert len(files) >= listing["count"] - len(steps_of(fixture))
    for item in listing.get("list", ()):
        path = log_dir / item["path"]
        if path.is_fifo():
            continue
        path.chmod(0o600)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == item["sha256"], item["path"]


def test_there_are_fixtures() -> None:
    assert len(FIXTURES) >= 34
    assert all(fixture.name == fixture.case["name"] for fixture in FIXTURES)
