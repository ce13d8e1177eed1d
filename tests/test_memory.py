"""A directory of two million records is judged in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cursus import layout
from cursus.formats import record, topic_manifest

RECORDS = 2_000_000
SEGMENTS = 4
PAYLOAD = b"x" * 96
LIMIT_MIB = 200

#: Run in a process of its own, so that the peak is that of the judgement alone. VmHWM and
#: not ``ru_maxrss``: the latter begins with the size of the process that started this one.
JUDGE = """
import sys
from cursus.evidence.walk import LogDirectory
from cursus.replay.startup import plan
with LogDirectory.at(sys.argv[1]) as evidence:
    result = plan(evidence)
count = sum(log.record_count for log in result.partitions.values())
with open("/proc/self/status") as status:
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM:"))
print(result.verdict, count, peak)
"""


def write_directory(log_dir: Path) -> None:
    """Frames are patched, not encoded one by one: two million take a few seconds."""
    topic = log_dir / "events"
    topic.mkdir(parents=True)
    definition = topic_manifest.TopicDefinition("events", 1, 1, 1, 1)
    (log_dir / layout.MANIFEST).write_bytes(topic_manifest.encode([definition]))
    frame = record.encode_frame(
        record.Record(b"events", 0, 0, b"app", 1, 0, PAYLOAD, key=b"customer-0000000")
    )
    before = 4 + 4 + 2 + len(b"events") + 4
    head, tail = frame[:before], frame[before + 8 :]
    each = RECORDS // SEGMENTS
    for base in range(0, RECORDS, each):
        with (topic / layout.segment_log(0, base)).open("wb") as log:
            for start in range(base, base + each, 10_000):
                log.write(
                    b"".join(
                        head + offset.to_bytes(8, "big") + tail
                        for offset in range(start, start + 10_000)
                    )
                )


def test_two_million_records_are_judged_below_the_limit(tmp_path: Path) -> None:
    log_dir = tmp_path / "log_dir"
    write_directory(log_dir)
    size = sum(path.stat().st_size for path in log_dir.rglob("*.log"))
    assert size > 380_000_000
    result = subprocess.run(
        [sys.executable, "-c", JUDGE, str(log_dir)], capture_output=True, text=True, check=True
    )
    verdict, count, peak_kib = result.stdout.split()
    for log in (log_dir / "events").glob("*.log"):
        log.unlink()
    assert (verdict, int(count)) == ("starts_clean", RECORDS)
    assert int(peak_kib) / 1024 < LIMIT_MIB
