"""Would a broker start on this? All five steps, judged on evidence, writing nothing.

:func:`plan` is the one place where a start is decided. The inspector prints its
result; the broker takes its lock, plans, and applies the actions only when
nothing refuses. They cannot disagree, because it is one function::

    1 topic_manifest       the manifest, by itself
    2 topic_storage        the manifest against the directories; every segment of
                           every application topic
    3 consumer_metadata    every segment of __consumer_offsets; its records
    4 transaction_journal  the journal; markers and open records in the logs
    5 checkpoints          high watermarks, producer state, aggregate files

Every step is judged, also behind the first refusal, since an operator wants to
know of all the damage at once; a broker does not get there, and such a step says
``not_reached``. Each segment is scanned once: its records go to every
accumulator and to the caller's sink while the scan holds them.

The order of findings is the order in which a broker would meet them, so that
the first refusing one is the cause that a broker names.

Source: runbook; README.md decisions 22 to 24, 27 to 29; broker.md section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from cursus import layout
from cursus.findings import EFFECT_ORDER, STEP_NAMES, Effect, Finding, Step, finding
from cursus.replay.aggregates import AggregateFiles, AggregateIndex
from cursus.replay.checkpoints import HwmCheckpoint, judge_hwm
from cursus.replay.commit import CommitJudge
from cursus.replay.consumer_groups import ConsumerReplay, ConsumerResult
from cursus.replay.interfaces import Entry, Evidence, RecordBatch, expect
from cursus.replay.producers import ProducerIndex, ProducerState
from cursus.replay.segments import (
    JudgeSegment,
    PartitionLog,
    SegmentFiles,
    judge_partition,
    segment_files,
)
from cursus.replay.topics import (
    ManifestReplay,
    TopicsReplay,
    TopicStorage,
    at_stake,
    in_the_way,
    judge_topics,
    not_opened,
    replay_manifest,
)
from cursus.replay.transactions import (
    DEFAULT_EXPIRATION_MS,
    JournalReplay,
    TransactionIndex,
    replay_journal,
)

Verdict = Literal[
    "starts_clean", "starts_with_repairs", "starts_with_damage", "undetermined", "refuses"
]
Outcome = Literal["passed", "repairs", "refuses", "not_reached"]
Sink = Callable[[RecordBatch], None]

#: What a start gives ``__consumer_offsets`` at least (consumer-metadata.md section 1).
_INTERNAL_PARTITIONS: Final = 4

_VERDICTS: Final[Mapping[Effect, Verdict]] = {
    "refuses": "refuses",
    "unknown": "undetermined",
    "data_missing": "starts_with_damage",
    "repairs": "starts_with_repairs",
}

#: What a start does about a finding whose effect is ``repairs`` or ``recovers``.
ACTION_KINDS: Final[Mapping[str, str]] = {
    "torn_record_length": "cut_log",
    "torn_record_body": "cut_log",
    "compaction_marker_stale": "remove_stale_marker",
    "compaction_temp_leftover": "remove_temp",
    "deleted_segment_leftover": "remove_deleted_segment",
    "index_missing": "create_index",
    "index_entry_not_increasing": "truncate_index",
    "index_entry_beyond_log": "truncate_index",
    "index_stray_entry": "truncate_index",
    "index_size_unaligned": "truncate_index",
    "truncation_resumable": "resume_truncation",
    "journal_frame_truncated": "cut_journal",
    "journal_frame_checksum_mismatch": "cut_journal",
    "txn_recovery_pending": "finish_transaction",
    "hwm_checkpoint_missing": "rebuild_checkpoint",
    "hwm_checkpoint_invalid": "rebuild_checkpoint",
    "hwm_checkpoint_behind_log": "raise_hwm",
    "hwm_checkpoint_ahead_of_log": "lower_hwm",
    "producer_checkpoint_invalid": "rebuild_checkpoint",
    "producer_checkpoint_version_unsupported": "rebuild_checkpoint",
    "producer_checkpoint_producers_missing": "rebuild_checkpoint",
    "stream_index_entry_torn": "rebuild_aggregate_index",
    "stream_index_hash_unknown": "rebuild_aggregate_index",
    "stream_index_diverges_from_log": "rebuild_aggregate_index",
    "stream_keys_hash_mismatch": "rebuild_aggregate_index",
    "stream_keys_torn": "rebuild_aggregate_index",
    "snapshot_record_torn": "cut_aggregate_snapshots",
}


@dataclass(frozen=True, slots=True)
class StartupConfig:
    """The settings of a broker that decide whether it starts. Limits: ``None`` for none."""

    transactional_id_expiration_ms: int = DEFAULT_EXPIRATION_MS
    max_topics: int | None = None
    max_partitions_per_topic: int | None = None
    max_partitions: int | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> StartupConfig:
        """Pick them out of a broker's configuration (YAML or JSON keys); others are left alone."""
        found: dict[str, int] = {}
        for name in (
            "transactional_id_expiration_ms",
            "max_topics",
            "max_partitions_per_topic",
            "max_partitions",
        ):
            value = settings.get(name, settings.get(name.replace("_", ".")))
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                found[name] = value
        return cls(**found)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a start would do to the directory.

    ``kind`` as in :data:`ACTION_KINDS`; ``expire_transaction``,
    ``create_internal_topic`` and ``grow_internal_topic`` follow from no finding
    of their own. ``detail`` is that of the finding.
    """

    step: Step
    kind: str
    path: str
    position: int | None
    message: str
    detail: Mapping[str, object] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """One step. A step that could not be judged for want of permission is ``not_reached``."""

    step: Step
    name: str
    outcome: Outcome
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The judgement, and the state that a start would open from.

    ``as_of``: nanoseconds since the zero time. ``partitions`` and what hangs on
    them are keyed by (topic, partition), ascending; partitions of directories
    that nobody declares are in ``partitions`` only. ``actions`` is empty when a
    start refuses: it then does nothing. ``findings`` are in broker order, those
    that belong to no step last.
    """

    log_dir: str
    in_use: bool | None
    as_of: int
    verdict: Verdict
    steps: tuple[StepOutcome, ...]
    actions: tuple[Action, ...]
    findings: tuple[Finding, ...]
    manifest: ManifestReplay
    topics: TopicsReplay
    partitions: Mapping[tuple[str, int], PartitionLog]
    consumers: ConsumerResult
    journal: JournalReplay
    transactions: Mapping[tuple[str, int], TransactionIndex]
    producers: Mapping[tuple[str, int], ProducerState]
    aggregates: Mapping[tuple[str, int], AggregateFiles]
    hwm: Mapping[tuple[str, int], HwmCheckpoint]

    @property
    def holds_nothing(self) -> bool:
        """Is there neither a manifest nor a partition?"""
        return not (self.manifest.present or self.partitions)

    @property
    def first_refusal(self) -> Finding | None:
        """What a broker would name."""
        return next((item for item in self.findings if item.effect == "refuses"), None)

    @property
    def first_cause(self) -> Finding | None:
        """The first finding that makes the verdict what it is; ``None`` for a clean start."""
        wanted = next((e for e, v in _VERDICTS.items() if v == self.verdict), None)
        return next((item for item in self.findings if item.effect == wanted and item.step), None)


def plan(
    evidence: Evidence,
    config: StartupConfig | None = None,
    as_of: int = 0,
    *,
    sink: Sink | None = None,
    judge: JudgeSegment | None = None,
) -> Plan:
    """Judge all five steps. Never raises for what stands in the directory.

    ``judge`` answers for each segment in place of a scan; it hands to its visitor
    the batches that a scan would, as far as the replay looks at them.
    """
    return _Planner(evidence, config or StartupConfig(), as_of, sink, judge).run()


def segments_to_judge(evidence: Evidence) -> Iterator[tuple[SegmentFiles, bool]]:
    """Every segment that :func:`plan` will ask about, in its order.

    With each: are keys of its partition aggregates with versions?
    """
    topics = judge_topics(evidence, replay_manifest(evidence)).topics
    internal = topics.get(layout.INTERNAL_TOPIC)
    ordered = [topic for topic in topics.values() if topic is not internal]
    for topic in [*ordered, *([internal] if internal is not None else [])]:
        for partition in sorted(topic.partitions):
            files = topic.partitions[partition]
            segments, _ = segment_files(
                evidence, topic.name, partition, files, internal=topic is internal
            )
            events = _is_event_sourcing(evidence, topic, partition)
            yield from ((item, events) for item in segments)


def _in_turn(topic: TopicStorage) -> Iterator[Entry]:
    """The segments of a topic in the order of their scans."""
    for _, files in sorted(topic.partitions.items()):
        yield from files.logs
        yield from files.deleted


def _is_event_sourcing(evidence: Evidence, topic: TopicStorage, partition: int) -> bool:
    if topic.definition is not None:
        return topic.definition.event_sourcing
    # Without a readable manifest the directory of aggregate files tells.
    directory = layout.topic_file(topic.name, layout.aggregate_directory(partition))
    return evidence.get(directory) is not None


@dataclass(slots=True)
class _Part:
    """What accumulates while one partition is scanned."""

    transactions: TransactionIndex
    producers: ProducerIndex
    aggregates: AggregateIndex


class _Planner:
    def __init__(
        self,
        evidence: Evidence,
        config: StartupConfig,
        as_of: int,
        sink: Sink | None,
        judge: JudgeSegment | None = None,
    ) -> None:
        self.evidence = evidence
        self.config = config
        self.as_of = as_of
        self.sink = sink
        self.judge = judge
        self.found: dict[int, list[Finding]] = {step: [] for step in STEP_NAMES}
        self.without_step: list[Finding] = []
        self.partitions: dict[tuple[str, int], PartitionLog] = {}
        self.parts: dict[tuple[str, int], _Part] = {}
        self.opens: set[tuple[str, int]] = set()

    def run(self) -> Plan:
        self._walk_findings()
        manifest = replay_manifest(self.evidence)
        self._add(manifest.findings, 1)
        self._add(self._capacity(manifest), 1)
        topics = judge_topics(self.evidence, manifest)
        self._add(topics.findings, 2)
        internal = topics.topics.get(layout.INTERNAL_TOPIC)
        for topic in topics.topics.values():
            if topic is not internal:
                self._scan_topic(topic, None)
        if manifest.definitions is not None and layout.INTERNAL_TOPIC not in {
            *manifest.by_name,
            *topics.undeclared,
        }:
            self._add(in_the_way(self.evidence, layout.INTERNAL_TOPIC), 3)
        consumers = self._consumers(manifest, topics, internal)
        self._at_stake()
        producers = self._producers()
        journal = self._journal(manifest, consumers, producers)
        aggregates, hwm = self._checkpoints(producers)
        return self._conclude(manifest, topics, consumers, journal, producers, aggregates, hwm)

    # -- findings ------------------------------------------------------------------

    def _add(self, findings: Iterable[Finding], step: Step) -> None:
        """Take findings; one without a step of its own gets ``step``."""
        for item in findings:
            if item.step is None:
                item = replace(item, step=step)
            self.found[item.step or step].append(item)

    def _walk_findings(self) -> None:
        lock = self.evidence.get(layout.LOG_DIR_LOCK)
        if lock is not None and lock.type != "file":
            # The lock comes before everything else, and is taken on a regular file only.
            text = f"a {lock.type} stands where the lock file of the log directory should be"
            self._add([finding("not_regular_file", lock.path, message=text, step=1)], 1)
        for item in self.evidence.walk_findings:
            if item.step is not None:
                self.found[item.step].append(item)
                continue
            step = self._step_of(item.path) if item.effect in {"refuses", "unknown"} else None
            if item.effect in {"refuses", "unknown"} and step is None:
                # Nothing that a broker would open: it takes no notice.
                self.without_step.append(replace(item, effect="ignores", severity="info"))
            elif step is not None:
                self.found[step].append(replace(item, step=step))
            else:
                self.without_step.append(item)

    def _step_of(self, path: str) -> Step | None:
        """The step at which a broker first needs this entry."""
        name = path.partition("/")[0]
        if name == layout.MANIFEST:
            return 1
        if name == layout.JOURNAL:
            return 4
        if layout.is_topic_name(name):
            return 3 if name == layout.INTERNAL_TOPIC and "/" in path else 2
        return None

    def _capacity(self, manifest: ManifestReplay) -> Iterable[Finding]:
        """Limits of broker.md section 7.4, where the configuration sets them."""
        config, definitions = self.config, manifest.definitions or ()
        each, whole, topics = (
            config.max_partitions_per_topic,
            config.max_partitions,
            config.max_topics,
        )
        texts = [
            f'topic "{item.name}" has {item.partitions} partitions, the limit is {each}'
            for item in definitions
            if each is not None and item.partitions > each
        ][:1]
        total = sum(item.partitions for item in definitions)
        if whole is not None and total > whole:
            texts.append(f"{total} partitions are declared, the limit is {whole}")
        if topics is not None and len(definitions) > topics:
            texts.append(f"{len(definitions)} topics are declared, the limit is {topics}")
        for text in texts[:1]:
            yield finding("topic_capacity_exceeded", layout.MANIFEST, message=text)

    # -- steps 2 and 3: the logs -----------------------------------------------------

    def _scan_topic(self, topic: TopicStorage, consumers: ConsumerReplay | None) -> None:
        internal = topic.name == layout.INTERNAL_TOPIC
        declared = topic.definition.partitions if topic.definition else None
        if self.judge is None:
            expect(self.evidence, _in_turn(topic))
        for partition in sorted(topic.partitions):
            files = topic.partitions[partition]
            key = (topic.name, partition)
            live = topic.state == "live" and (declared is None or partition < declared)
            part = self._part(topic, partition) if live else None
            log = judge_partition(
                self.evidence,
                topic.name,
                partition,
                files,
                internal=internal,
                visit=self._visitor(part, consumers if live else None),
                judge=self.judge,
            )
            if topic.state == "resumable":
                # A start empties this directory: nothing in it can stop it.
                log = replace(log, findings=tuple(_set_aside(item) for item in log.findings))
            elif topic.state == "undeclared":
                # Nobody opens it, so a start neither stops at it nor cleans it up.
                log = replace(log, findings=tuple(map(not_opened, log.findings)))
            elif not live:
                # A partition beyond those that are declared: what stops a start, still does.
                cleaned = (_left_alone(item) for item in log.findings)
                log = replace(log, findings=tuple(cleaned))
            self.partitions[key] = log
            if part is not None:
                self.parts[key] = part
                if log.segments and not any(_stops(item) for item in log.findings):
                    self.opens.add(key)
            self._add(log.findings, 3 if internal else 2)

    def _at_stake(self) -> None:
        """What the topics hold whose truncation is unfinished, now that they are scanned."""
        by_topic: dict[str, list[PartitionLog]] = {}
        for (topic, _), log in self.partitions.items():
            by_topic.setdefault(topic, []).append(log)
        self.found[2] = [
            at_stake(item, by_topic.get(item.path, []))
            if item.code in {"lifecycle_reset_pending", "truncation_resumable"}
            else item
            for item in self.found[2]
        ]

    def _part(self, topic: TopicStorage, partition: int) -> _Part:
        event_sourcing = _is_event_sourcing(self.evidence, topic, partition)
        return _Part(
            TransactionIndex(topic.name, partition),
            ProducerIndex(topic.name, partition),
            AggregateIndex(topic.name, partition, event_sourcing=event_sourcing),
        )

    def _visitor(self, part: _Part | None, consumers: ConsumerReplay | None) -> Sink | None:
        visits: list[Sink] = []
        if part is not None:
            visits += [part.transactions.visit, part.producers.visit, part.aggregates.visit]
        if consumers is not None:
            visits.append(consumers.visit)
        if self.sink is not None:
            visits.append(self.sink)
        if not visits:
            return None

        def visit(batch: RecordBatch) -> None:
            for each in visits:
                each(batch)

        return visit

    def _consumers(
        self, manifest: ManifestReplay, topics: TopicsReplay, internal: TopicStorage | None
    ) -> ConsumerResult:
        count = 0
        if internal is not None:
            count = internal.definition.partitions if internal.definition else 0
            count = max(count, max(internal.partitions, default=-1) + 1)
        replay = ConsumerReplay(max(_INTERNAL_PARTITIONS, count))
        if internal is not None:
            self._scan_topic(internal, replay)
        failure = next((item for item in self.found[3] if _stops(item)), None)
        declared = None
        if manifest.definitions is not None:
            declared = {item.name: item.partitions for item in manifest.definitions}
        bounds = {
            key: (log.log_start, log.next_offset)
            for key, log in self.partitions.items()
            if key in self.opens
        }
        result = replay.finish(
            declared=declared,
            bounds=bounds,
            storage_failure=f"{failure.path}: {failure.message}" if failure else None,
        )
        self._add(result.findings, 3)
        return result

    # -- steps 4 and 5 -----------------------------------------------------------------

    def _journal(
        self,
        manifest: ManifestReplay,
        consumers: ConsumerResult,
        producers: Mapping[tuple[str, int], ProducerState],
    ) -> JournalReplay:
        declared = None
        if manifest.definitions is not None:
            declared = {item.name: item.partitions for item in manifest.definitions}
        whole = not any(_stops(item) for item in self.found[3])
        groups = consumers.groups if whole else None
        known = {key: state.effective for key, state in producers.items() if key in self.opens}
        journal = replay_journal(
            self.evidence,
            self.as_of,
            declared=declared,
            groups=groups,
            expiration_ms=self.config.transactional_id_expiration_ms,
            # In a live directory the logs may be newer than the journal: they prove nothing.
            can_commit=CommitJudge(groups, None if self.evidence.in_use else known),
        )
        self._add(journal.findings, 4)
        for part in self.parts.values():
            self._add(part.transactions.findings(journal), 4)
        return journal

    def _producers(self) -> dict[tuple[str, int], ProducerState]:
        """Known before step 4, which asks for it; what is wrong with it is told at step 5."""
        return {
            key: part.producers.finish(self.evidence, self.partitions[key], opens=key in self.opens)
            for key, part in self.parts.items()
        }

    def _checkpoints(
        self, producers: Mapping[tuple[str, int], ProducerState]
    ) -> tuple[dict[tuple[str, int], AggregateFiles], dict[tuple[str, int], HwmCheckpoint]]:
        aggregates: dict[tuple[str, int], AggregateFiles] = {}
        watermarks: dict[tuple[str, int], HwmCheckpoint] = {}
        for key, part in self.parts.items():
            log = self.partitions[key]
            opens = key in self.opens
            watermarks[key] = judge_hwm(self.evidence, log, opens=opens)
            self._add(watermarks[key].findings, 5)
            self._add(producers[key].findings, 5)
            aggregates[key] = part.aggregates.finish(self.evidence, log, opens=opens)
            self._add(aggregates[key].findings, 5)
        return aggregates, watermarks

    # -- the verdict ---------------------------------------------------------------------

    def _conclude(
        self,
        manifest: ManifestReplay,
        topics: TopicsReplay,
        consumers: ConsumerResult,
        journal: JournalReplay,
        producers: dict[tuple[str, int], ProducerState],
        aggregates: dict[tuple[str, int], AggregateFiles],
        hwm: dict[tuple[str, int], HwmCheckpoint],
    ) -> Plan:
        steps = _outcomes(self.found)
        verdict = _verdict(steps)
        actions: tuple[Action, ...] = ()
        if verdict != "refuses":
            actions = tuple(_actions(steps, manifest, journal))
        findings = [item for step in steps for item in step.findings]
        return Plan(
            log_dir=self.evidence.log_dir,
            in_use=self.evidence.in_use,
            as_of=self.as_of,
            verdict=verdict,
            steps=steps,
            actions=actions,
            findings=(*findings, *self.without_step),
            manifest=manifest,
            topics=topics,
            partitions=dict(sorted(self.partitions.items())),
            consumers=consumers,
            journal=journal,
            transactions={key: part.transactions for key, part in sorted(self.parts.items())},
            producers=dict(sorted(producers.items())),
            aggregates=dict(sorted(aggregates.items())),
            hwm=dict(sorted(hwm.items())),
        )


def _stops(item: Finding) -> bool:
    """Would a broker not get past this, or can that not be told?"""
    return item.effect in {"refuses", "unknown"}


def _set_aside(item: Finding) -> Finding:
    return replace(item, effect="ignores", severity="info")


def _outcomes(found: Mapping[int, Sequence[Finding]]) -> tuple[StepOutcome, ...]:
    outcomes: list[StepOutcome] = []
    refused = False
    steps: tuple[Step, ...] = (1, 2, 3, 4, 5)
    for step in steps:
        effects = {item.effect for item in found[step]}
        outcome: Outcome = "passed"
        if refused:
            outcome = "not_reached"
        elif "refuses" in effects:
            outcome, refused = "refuses", True
        elif "unknown" in effects:
            outcome = "not_reached"
        elif "repairs" in effects:
            outcome = "repairs"
        outcomes.append(StepOutcome(step, STEP_NAMES[step], outcome, tuple(found[step])))
    return tuple(outcomes)


def _verdict(steps: Sequence[StepOutcome]) -> Verdict:
    worst: Effect = "ignores"
    for step in steps:
        for item in step.findings:
            if EFFECT_ORDER.index(item.effect) < EFFECT_ORDER.index(worst):
                worst = item.effect
        if step.outcome == "refuses":
            break  # a broker sees nothing behind
    return _VERDICTS.get(worst, "starts_clean")


def _left_alone(item: Finding) -> Finding:
    """``item`` of a partition that nobody opens: its leftovers stay where they are."""
    return not_opened(item) if item.effect in {"recovers", "repairs"} else item


def _actions(
    steps: Sequence[StepOutcome], manifest: ManifestReplay, journal: JournalReplay
) -> Iterable[Action]:
    if manifest.definitions is not None and layout.INTERNAL_TOPIC not in manifest.by_name:
        text = f"create {layout.INTERNAL_TOPIC} and declare it in the manifest"
        yield Action(3, "create_internal_topic", layout.INTERNAL_TOPIC, None, text)
    declared = manifest.by_name.get(layout.INTERNAL_TOPIC)
    if declared is not None and declared.partitions < _INTERNAL_PARTITIONS:
        text = f"grow {layout.INTERNAL_TOPIC} to {_INTERNAL_PARTITIONS} partitions"
        yield Action(3, "grow_internal_topic", layout.INTERNAL_TOPIC, None, text)
    for step in steps:
        for item in step.findings:
            kind = ACTION_KINDS.get(item.code)
            acts = item.effect in {"repairs", "recovers"} or item.code == "hwm_checkpoint_missing"
            if kind is not None and acts:
                yield Action(step.step, kind, item.path, item.position, item.message, item.detail)
        if step.step == 4:
            for name in journal.expire:
                text = f'transactional id "{name}" is past its expiration'
                yield Action(
                    4,
                    "expire_transaction",
                    layout.JOURNAL,
                    None,
                    text,
                    {"transactional_id": name},
                )
