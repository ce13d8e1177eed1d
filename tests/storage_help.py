"""What tests of the stores share: judging a directory, and looking at its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from cursus import layout
from cursus.evidence.walk import LogDirectory
from cursus.findings import Finding
from cursus.replay.segments import PartitionLog, judge_partition
from cursus.replay.topics import judge_topics, replay_manifest

#: Files that an opening adds beside those of the vectors.
LOCKS = (".lock",)


def judge_log(
    log_dir: Path, topic: str, partition: int
) -> tuple[list[Finding], PartitionLog | None]:
    """What the replay says about one partition; ``None`` where nothing of it is there."""
    with LogDirectory.at(str(log_dir)) as evidence:
        topics = judge_topics(evidence, replay_manifest(evidence))
        storage = topics.topics.get(topic)
        files = storage.partitions.get(partition) if storage else None
        if files is None:
            return list(topics.findings), None
        internal = topic == layout.INTERNAL_TOPIC
        return list(topics.findings), judge_partition(
            evidence, topic, partition, files, internal=internal
        )


def tree(log_dir: Path, *, without: Iterable[str] = LOCKS) -> dict[str, str]:
    """SHA-256 of every file, by its relative path; lock files aside."""
    return {
        str(path.relative_to(log_dir)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(log_dir.rglob("*"))
        if path.is_file() and not path.name.endswith(tuple(without))
    }
