"""Is a copy of a log directory complete enough to be restored?

A copy is ready when the manifest and the directories tell the same story:
nothing is wrong in the inventory, every declared topic has its directory with
all of its partitions, no other directory holds logs, and every frame of the
transaction journal can be read. Read-only; it says nothing about a start
(``inspect-db verdict`` does).

Source: manifest.md section 8.8; README.md decision 18.
"""

from __future__ import annotations

from dataclasses import dataclass

from cursus import layout
from cursus.evidence.inventory import Inventory, Topic, inventory_document, take_inventory
from cursus.formats.canonical_json import Writable
from cursus.formats.topic_manifest import TopicDefinition
from cursus.replay.interfaces import Evidence
from cursus.replay.transactions import scan_journal


@dataclass(frozen=True, slots=True)
class JournalReport:
    """What stands in the journal; ``problem`` is a code and a sentence, if any."""

    present: bool
    record_count: int = 0
    latest_transactions: int = 0
    problem: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class BackupReport:
    """``problem`` is the first reason why the copy is not ready, as a code and a sentence."""

    inventory: Inventory
    journal: JournalReport
    problem: tuple[str, str] | None

    @property
    def ready(self) -> bool:
        """Nothing speaks against a restore."""
        return self.problem is None


def validate_backup(evidence: Evidence) -> BackupReport:
    """Check a copy. Raises ``InventoryError`` where there is no inventory."""
    inventory = take_inventory(evidence)
    journal = _journal(evidence)
    return BackupReport(inventory, journal, _alignment(inventory) or journal.problem)


def backup_document(report: BackupReport) -> dict[str, Writable]:
    """The JSON document of ``backup validate``."""
    return {
        "ready": report.ready,
        "inventory": inventory_document(report.inventory),
        "transaction_journal": {
            "present": report.journal.present,
            "record_count": report.journal.record_count,
            "latest_transactions": report.journal.latest_transactions,
        },
    }


def _alignment(inventory: Inventory) -> tuple[str, str] | None:
    if not inventory.manifest_present:
        return "manifest_absent", f"{layout.MANIFEST} is absent"
    if inventory.problems:
        first = inventory.problems[0]
        more = len(inventory.problems) - 1
        tail = f" (and {more} more problems)" if more else ""
        return "storage_has_problems", f"{first.path}: {first.message}{tail}"
    declared, stored = inventory.definitions, {topic.name: topic for topic in inventory.topics}
    if len(declared) != len(stored):
        return (
            "topic_count_mismatch",
            f"the manifest declares {len(declared)} topics, {len(stored)} have storage",
        )
    for definition in declared:
        problem = _topic(definition, stored.get(definition.name))
        if problem is not None:
            return problem
    return None


def _topic(definition: TopicDefinition, topic: Topic | None) -> tuple[str, str] | None:
    name = definition.name
    if topic is None:
        return "declared_topic_storage_missing", f"topic {name} is declared and has no storage"
    partitions = topic.partitions
    if len(partitions) != definition.partitions:
        return (
            "partition_count_mismatch",
            f"topic {name} declares {definition.partitions} partitions, "
            f"{len(partitions)} have storage",
        )
    for number, partition in enumerate(partitions):
        if partition.id != number:
            return "partition_ids_not_contiguous", f"topic {name} has no partition {number}"
        if not partition.segments:
            return (
                "declared_topic_partition_missing",
                f"partition {number} of topic {name} has no active segment",
            )
    return None


def _journal(evidence: Evidence) -> JournalReport:
    entry = evidence.get(layout.JOURNAL)
    if entry is None:
        return JournalReport(present=False)
    if entry.type != "file":
        text = f"{layout.JOURNAL} is a {entry.type}, not a regular file"
        return JournalReport(True, problem=("journal_not_regular", text))
    try:
        with evidence.open(layout.JOURNAL) as source:
            scan = scan_journal(source, entry.size)
    except OSError as error:
        text = f"{layout.JOURNAL}: {error.strerror or error}"
        return JournalReport(True, problem=("journal_unreadable", text))
    problem = None
    if scan.problem is not None:
        text = f"{layout.JOURNAL}: byte {scan.problem.position}: {scan.problem.message}"
        problem = (scan.problem.code, text)
    return JournalReport(True, len(scan.frames), len(scan.latest), problem)
