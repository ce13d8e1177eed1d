"""The one catalogue of findings.

A finding is a sentence about one place in the evidence: *what* is wrong
(``code``), *where* (``path``, byte ``position``, ``length``), what a broker
does about it (``effect``) at which of the five recovery steps (``step``), and
what is lost where that can be known (``lost``).

Every code stands in :data:`CATALOGUE` once, with its default severity, effect
and step, one line of meaning and one line of what to do. ``docs/findings.md``,
the SQL table ``finding_codes`` and the texts of ``cursus-storage`` come from
here. :func:`finding` is the only way to make a finding; it refuses a code that
is not in the catalogue.

Source: spec/README.md decisions 20 and 23.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

Severity = Literal["error", "warning", "info"]
Effect = Literal["refuses", "unknown", "data_missing", "repairs", "recovers", "ignores"]
Step = Literal[1, 2, 3, 4, 5]

#: The five steps of the recovery contract, in order.
STEP_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "topic_manifest",
        2: "topic_storage",
        3: "consumer_metadata",
        4: "transaction_journal",
        5: "checkpoints",
    }
)

#: Worst first; the verdict of a directory is that of its worst effect.
EFFECT_ORDER: Final[tuple[Effect, ...]] = (
    "refuses",
    "unknown",
    "data_missing",
    "repairs",
    "recovers",
    "ignores",
)


@dataclass(frozen=True, slots=True)
class FindingCode:
    """One entry of the catalogue.

    ``also_named`` lists other names that the specification has for the same
    thing (decision 20): they are never raised, but a reader who knows them
    finds this entry.
    """

    code: str
    severity: Severity
    effect: Effect
    step: Step | None
    meaning: str
    action: str
    also_named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """What is lost, as far as it can be known. ``None`` means not known."""

    bytes: int | None = None
    records: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding with its address.

    ``path`` is relative to ``log_dir`` with ``/`` separators; bytes that are
    not UTF-8 are kept by ``surrogateescape``. ``position`` and ``length`` are
    bytes in that file, ``None`` for the entry as a whole. ``detail`` holds the
    facts behind ``message`` under fixed names (``topic``, ``partition``,
    ``group``, ``offset``, ``epoch``, ``revision``, ``transactional_id``,
    ``expected``, ``found``, …) for programs; it is not part of ``--json``.
    """

    code: str
    path: str
    severity: Severity
    effect: Effect
    step: Step | None
    message: str
    action: str
    position: int | None = None
    length: int | None = None
    lost: Lost | None = None
    detail: Mapping[str, object] = field(default_factory=dict, hash=False)


CATALOGUE: dict[str, FindingCode] = {}


def _add(entries: Iterable[FindingCode]) -> None:
    for entry in entries:
        if entry.code in CATALOGUE:
            raise ValueError(f"finding code {entry.code} stands in the catalogue twice")
        CATALOGUE[entry.code] = entry


def finding(
    code: str,
    path: str,
    *,
    position: int | None = None,
    length: int | None = None,
    message: str | None = None,
    severity: Severity | None = None,
    effect: Effect | None = None,
    step: Step | None = None,
    lost: Lost | None = None,
    **detail: object,
) -> Finding:
    """Make a finding of ``code``; whatever is not given comes from the catalogue.

    Raises ``KeyError`` for a code that is not in the catalogue.
    """
    entry = CATALOGUE[code]
    return Finding(
        code=code,
        path=path,
        severity=severity or entry.severity,
        effect=effect or entry.effect,
        step=step if step is not None else entry.step,
        message=message or entry.meaning,
        action=entry.action,
        position=position,
        length=length,
        lost=lost,
        detail=detail,
    )


class FormatError(ValueError):
    """Bytes that a decoder does not accept.

    ``code`` is a catalogue code, ``position`` the byte inside the decoded
    bytes (relative to their start), ``detail`` facts such as ``field``.
    """

    def __init__(
        self, code: str, message: str, *, position: int | None = None, **detail: object
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.position = position
        self.detail = detail


# One block for each subject; a code belongs to exactly one block.

# -- records and segments (segments.md) --------------------------------------
_add(
    [
    ]
)

# -- manifest, topics, directories, archive (manifest.md) --------------------
_add(
    [
    ]
)

# -- consumer metadata (consumer-metadata.md) --------------------------------
_add(
    [
    ]
)

# -- journal, transactions, checkpoints, aggregates (journal.md) -------------
_add(
    [
    ]
)

# -- entries of the directory, reading, use (journal.md section 8, README) ---
_add(
    [
    ]
)
