"""Any bytes give a value or a finding: no exception, no hang, no silent wrong answer.

Decoders are driven with arbitrary and mutated bytes. Whole directories are
damaged: three small ones completely (every bit of every byte, every length of
every file), others by sample. A mutation that still ends in ``starts_clean``
must fall into a kind that nobody can see; the kinds and the reasons stand in
:data:`UNSEEN`. What a mutation touched is told from the original bytes by a
small reader of its own, not by the code under test.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_column_scan import ByColumns, Plainly, judged_by

from cursus.evidence.segment_scan import scan_segment
from cursus.evidence.walk import LogDirectory
from cursus.findings import CATALOGUE, FormatError
from cursus.formats import (
    aggregate_files,
    canonical_json,
    checkpoints,
    compaction_marker,
    consumer_metadata,
    offset_index,
    record,
    timestamps,
    topic_manifest,
    transaction_journal,
)
from cursus.replay.interfaces import SegmentRef
from cursus.replay.startup import Plan, plan
from cursus.replay.transactions import scan_journal

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
AS_OF = timestamps.parse("2026-09-20T00:00:00Z")

#: What no reader can see, and why.
UNSEEN = {
    "record value": "a value inside an application record: records carry no checksum",
    "consumer value": "a value of a consumer record that its key does not cover, in a form that "
    "the rules between records allow",
    "transaction field": "fields of a record that only mean something together with others",
    "index": "the index is advisory: the log decides",
    "high watermark": "a checkpoint may lag: a start raises it to the end of the log",
    "producer checkpoint": "the log is scanned anyway; nothing says what the file should hold",
    "manifest value": "a value of the manifest that is as good as the one before",
    "lock file": "lock files are empty and never read",
    "cut at a frame": "a log cut between two frames is a shorter log",
    "note": "a file that no broker reads",
}


# -- decoders ------------------------------------------------------------------------

DECODERS: dict[str, Callable[[bytes], object]] = {
    "record": record.decode,
    "any record": lambda data: record.decode_any(data, b"orders", 0),
    "offset index": offset_index.valid_prefix,
    "compaction marker": compaction_marker.is_valid,
    "manifest": topic_manifest.decode,
    "manifest names": topic_manifest.topic_names,
    "consumer record": consumer_metadata.decode,
    "unversioned offsets": consumer_metadata.decode_unversioned,
    "journal payload": transaction_journal.decode,
    "later journal payload": lambda data: transaction_journal.decode(
        data, versions=frozenset({1, 2, 3})
    ),
    "journal manifest": transaction_journal.decode_manifest,
    "hwm": checkpoints.decode_hwm,
    "lifecycle epoch": checkpoints.decode_lifecycle_epoch,
    "producers": checkpoints.decode_producers,
    "aggregate index": aggregate_files.decode_index,
    "aggregate keys": aggregate_files.decode_keys,
    "aggregate snapshots": aggregate_files.decode_snapshots,
    "json": canonical_json.parse,
}
SEEDS = [
    record.encode(record.Record(b"orders", 0, 7, b"p", 1, 1, b"payload", key=b"k")),
    topic_manifest.encode([topic_manifest.TopicDefinition("orders", 1, 1, 3, 1)]),
    b'{"version":1,"type":"offset_snapshot","group":"g","topic":"t","epoch":1,"revision":1,'
    b'"offsets":[{"partition":0,"offset":17}],"timestamp":"2026-09-02T00:00:01Z"}',
    b'{"version":1,"transaction":{"id":"t","producer":"p","epoch":0,"revision":1,"state":"open",'
    b'"created_at":"2026-09-14T08:30:00Z","updated_at":"2026-09-14T08:30:00Z"}}',
    b'{"p":{"epoch":0,"seq":12}}\n',
    b"42\n",
    aggregate_files.encode_snapshot(b"key", 3, b"payload"),
]


def mutated() -> st.SearchStrategy[bytes]:
    """A valid document with some bytes replaced, inserted, removed or repeated."""

    def mutate(seed: bytes, steps: list[tuple[int, int, bytes]]) -> bytes:
        data = bytearray(seed)
        for kind, at, new in steps:
            where = at % (len(data) + 1)
            if kind == 0:
                data[where : where + len(new)] = new
            elif kind == 1:
                data[where:where] = new
            elif kind == 2:
                del data[where : where + 1 + at % 7]
            else:
                data[where:where] = data[: at % 40]
        return bytes(data)

    step = st.tuples(st.integers(0, 3), st.integers(0, 4000), st.binary(min_size=0, max_size=6))
    return st.builds(mutate, st.sampled_from(SEEDS), st.lists(step, max_size=6))


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=150, deadline=None)
@given(data=st.one_of(st.binary(max_size=300), mutated()))
def test_decoder_gives_a_value_or_a_code(name: str, data: bytes) -> None:
    problem: FormatError | None = None
    try:
        DECODERS[name](data)
    except FormatError as error:
        problem = error
    if problem is not None:
        assert problem.code in CATALOGUE
        assert problem.position is None or 0 <= problem.position <= len(data)


class Bytes:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def pread(self, length: int, position: int) -> bytes:
        return self.data[position : position + length]


@settings(max_examples=300, deadline=None)
@given(data=st.one_of(st.binary(max_size=400), mutated()), shape=st.integers(0, 31))
def test_scan_of_any_bytes(data: bytes, shape: int) -> None:
    framed = struct.pack(">I", len(data)) + data + data[:17]
    ref = SegmentRef(
        "p",
        "orders",
        0,
        7,
        len(framed),
        active=bool(shape & 1),
        deleted=bool(shape & 2),
        gaps_allowed=bool(shape & 4),
        internal=bool(shape & 8),
        in_use=bool(shape & 16),
    )
    seen: list[int] = []
    scan = scan_segment(Bytes(framed), ref, lambda batch: seen.append(len(batch)))
    assert 0 <= scan.end_position <= len(framed)
    assert (scan.end == "clean") == (scan.end_position == len(framed))
    assert scan.end == "clean" or scan.findings
    journal = scan_journal(Bytes(framed), len(framed))
    assert 0 <= journal.end <= len(framed)


def test_a_file_full_of_false_frames_is_scanned_in_linear_time() -> None:
    """Each candidate says that it is 60 MB long; none may be believed, copied or followed."""
    head = struct.pack(">I", 60_000_000) + b"CDM2" + struct.pack(">H", 6) + b"orders"
    data = b"\0" * 4 + (head + struct.pack(">I", 0)) * 50_000
    ref = SegmentRef("p", "orders", 0, 0, len(data), True, False, False, False)
    assert scan_segment(Bytes(data), ref).end == "damaged"


def test_journal_full_of_false_frames_is_walked_in_linear_time() -> None:
    data = b"\xff" * 4 + (struct.pack(">I", 500_000) + b'{"version":') * 60_000
    assert scan_journal(Bytes(data), len(data)).problem is not None


# -- directories ----------------------------------------------------------------------


def judge(log_dir: Path) -> Plan:
    with LogDirectory.at(str(log_dir)) as evidence:
        return plan(evidence, as_of=AS_OF)


#: Of so many mutations one is judged from columns and record by record too.
EVERY = 64


def both_scans_agree(log_dir: Path) -> None:
    """The same findings, positions and values, however the records are read."""
    found = judged_by(LogDirectory, log_dir, AS_OF)
    assert found == judged_by(Plainly, log_dir, AS_OF)
    assert found == judged_by(ByColumns, log_dir, AS_OF)


def spans_of_frame(data: bytes, start: int, internal: bool) -> Iterator[tuple[int, int, str]]:
    """(begin, end, kind) of the values of a CDM2 frame that nobody checks."""
    at = start + 8
    width = {"topic": 2, "producer": 2, "payload": 4}

    def text(size: int) -> tuple[int, int]:
        nonlocal at
        length = int.from_bytes(data[at : at + size], "big")
        begin = at + size
        at = begin + length
        return begin, at

    text(width["topic"])
    at += 12  # partition and offset are checked
    kind = "consumer value" if internal else "record value"
    yield (*text(width["producer"]), kind)
    yield at, at + 16, kind  # sequence and epoch
    at += 16
    payload = text(width["payload"])
    yield (*payload, kind)
    yield (*text(2), kind)  # event type
    yield at, at + 12, kind  # schema and aggregate version
    at += 12
    yield (*text(2), kind)  # metadata
    yield (*text(2), "consumer key" if internal else kind)
    for _ in range(4):  # id, state, marker, control type
        yield (*text(2), "transaction field")
    yield at, at + 10, "transaction field"
    at += 10
    yield (*text(2), "transaction field")
    yield (*text(2), "transaction field")


def frames_of(data: bytes) -> list[int]:
    """Where the frames of an undamaged log begin, and its end."""
    at = 0
    found = [0]
    while at + 4 <= len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(at)
    return found


class Original:
    """What the bytes of an undamaged directory are for."""

    def __init__(self, log_dir: Path) -> None:
        self.files = {
            str(path.relative_to(log_dir)): path.read_bytes()
            for path in sorted(log_dir.rglob("*"))
            if path.is_file()
        }
        self.spans: dict[str, list[tuple[int, int, str]]] = {}
        self.frames: dict[str, list[int]] = {}
        for name, data in self.files.items():
            if name.endswith(".log"):
                frames = self.frames[name] = frames_of(data)
                internal = name.startswith("__consumer_offsets/")
                self.spans[name] = [
                    span for at in frames[:-1] for span in spans_of_frame(data, at, internal)
                ]

    def kind(self, name: str, at: int, cut: bool) -> str:
        """What a mutation at byte ``at`` of ``name`` (or a cut there) touches."""
        if name.endswith(".index"):
            return "index"
        if name.endswith(".hwm"):
            return "high watermark"
        if name.endswith(".producers"):
            return "producer checkpoint"
        if name.endswith(".lock"):
            return "lock file"
        if name == "__topic_metadata.json":
            if cut:
                rest = self.files[name][at:].strip()
                return "manifest structure" if rest else "manifest value"
            return self._in_manifest(at)
        if name in self.frames:
            if cut:
                return "cut at a frame" if at in self.frames[name] else "cut inside a frame"
            for begin, end, kind in self.spans[name]:
                if begin <= at < end:
                    return self._in_payload(name, at, begin, end, kind)
            return "frame structure"
        if name == "__transaction_state.journal":
            return "journal"
        return "note"

    def _in_manifest(self, at: int) -> str:
        """Values of fields that are free within their rules."""
        text = self.files["__topic_metadata.json"]
        line_start = text.rfind(b"\n", 0, at) + 1
        line = text[line_start : text.find(b"\n", at)]
        free = (
            b'"revision"',
            b'"replication_factor"',
            b'"idempotent"',
            b'"event_sourcing"',
            b'"retention',
            b'"lifecycle_epoch"',
            b'"cleanup_policy"',
            b'"partitioner"',
            b'"auth_policy"',
            b'"min_in_sync',
        )
        if (
            not line.strip()
            or line[: at - line_start].strip() == b""
            or line[at - line_start :].strip() in {b"", b","}
        ):
            return "manifest value"  # white space
        return "manifest value" if any(name in line for name in free) else "manifest structure"

    def _in_payload(self, name: str, at: int, begin: int, end: int, kind: str) -> str:
        data = self.files[name][begin:end]
        if kind != "consumer value" or not data.startswith(b"{"):
            return kind
        # A letter of an escape is as good in the other case: "\\u003c" and "\\u003C" are one name.
        for found in re.finditer(rb"\\u[0-9a-f]{4}", data):
            if found.start() + 2 <= at - begin < found.end() and data[at - begin] > 0x39:
                return kind
        # The key covers group and topic of a snapshot, and the group of all others.
        for found in re.finditer(rb'"(group|topic)":"((?:[^"\\]|\\.)*)"', data):
            covered = found[1] == b"group" or b"offset_snapshot" in data
            if covered and found.start() <= at - begin < found.end():
                return "consumer name"
        return kind


def mutations_of_everything(original: Original) -> Iterator[tuple[str, int, bool, bytes]]:
    for name, data in original.files.items():
        for at in range(len(data)):
            yield name, at, True, data[:at]
            for bit in range(8):
                changed = bytearray(data)
                changed[at] ^= 1 << bit
                yield name, at, False, bytes(changed)


def run_mutations(
    log_dir: Path, original: Original, mutations: Iterator[tuple[str, int, bool, bytes]]
) -> Counter[str]:
    """Judge each mutation; returns how many of each kind still start clean."""
    unseen: Counter[str] = Counter()
    wrong: list[str] = []
    current: str | None = None
    for number, (name, at, cut, data) in enumerate(mutations):
        if current is not None and current != name:
            (log_dir / current).write_bytes(original.files[current])
        current = name
        if data == original.files[name]:
            continue
        (log_dir / name).write_bytes(data)
        result = judge(log_dir)
        if number % EVERY == 0:
            both_scans_agree(log_dir)
        if result.verdict != "starts_clean":
            assert [f for f in result.findings if f.severity != "info"]
            continue
        kind = original.kind(name, at, cut)
        unseen[kind] += 1
        if kind not in UNSEEN:
            wrong.append(f"{name} byte {at} (cut: {cut}): {kind} passes as clean")
    if current is not None:
        (log_dir / current).write_bytes(original.files[current])
    assert not wrong, "\n".join(wrong[:20])
    return unseen


def copy_of(name: str, target: Path) -> Path:
    """A copy without the special entries of the fixture: here bytes matter, not types."""
    return Path(shutil.copytree(FIXTURES / name / "log_dir", target / "log_dir"))


@pytest.mark.parametrize(
    "name",
    [
        "fifo-as-journal",
        "open-transaction-without-journal",
        "registration-lost-first-segment-missing",
    ],
)
@pytest.mark.parametrize("half", [0, 1])
def test_small_directory_damaged_completely(name: str, half: int, tmp_path: Path) -> None:
    log_dir = copy_of(name, tmp_path)
    original = Original(log_dir)
    assert sum(map(len, original.files.values())) <= 4096
    assert judge(log_dir).verdict == "starts_clean"
    each = mutations_of_everything(original)
    part = (item for number, item in enumerate(each) if number % 2 == half)
    assert run_mutations(log_dir, original, part)


SAMPLED = [
    "group-names-hostile",
    "group-topic-gone",
    "values-at-the-edge",
    "recreated-group-wrong-order",
    "index-of-another-segment",
]


@pytest.mark.parametrize("name", SAMPLED)
def test_larger_directory_damaged_by_sample(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    log_dir = copy_of(name, tmp_path)
    original = Original(log_dir)
    assert judge(log_dir).verdict == "starts_clean"
    count = request.config.getoption("--fuzz-mutations") // len(SAMPLED)
    chance = random.Random(json.dumps([name, count]))
    names = [n for n, data in original.files.items() if data]
    weights = [len(original.files[n]) for n in names]

    def mutations() -> Iterator[tuple[str, int, bool, bytes]]:
        chosen = sorted(chance.choices(names, weights, k=count))
        for file in chosen:
            data = original.files[file]
            at = chance.randrange(len(data))
            if chance.random() < 0.15:
                yield file, at, True, data[:at]
                continue
            changed = bytearray(data)
            if chance.random() < 0.5:
                changed[at] ^= 1 << chance.randrange(8)
            else:
                changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x7B, 0x30))
            yield file, at, False, bytes(changed)

    run_mutations(log_dir, original, mutations())


def test_the_reasons_are_documented() -> None:
    page = (FIXTURES.parent / "docs" / "recovery-contract.md").read_text("utf-8")
    for kind in UNSEEN:
        assert f"`{kind}`" in page, f"docs/recovery-contract.md does not explain {kind}"
