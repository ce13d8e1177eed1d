"""The life of a standalone broker's storage: lock, judge, and only then act.

    take .cursus.lock      busy: StorageLockedError, at once
    plan                   the one judgement, on evidence, writing nothing
      refuses              diagnostics: the lock is kept, nothing is touched
      starts               its actions, through the durable door; everything is
                           opened from the state that the plan found
    … operations …           and background work (``cursus.broker.background``)
    close                  background work, logs, checkpoints, journal, locks: in that order

The judgement and the inspector's verdict are one function
(``cursus.replay.startup.plan``), so they cannot disagree. What a start changes
is what the plan lists as actions, and what opening adds: lock files, the index
of an active segment at its full size, an empty journal.

A step that fails while the actions are applied (a full disk, a transaction that
cannot be finished) ends in diagnostics too, with the code of the cause; what
was opened is closed again, and the next start judges anew.

Source: runbook; broker.md sections 2.1 to 2.4; README.md decisions 12, 22, 32, 33.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import RLock
from types import TracebackType
from typing import Any, Final, Self

from cursus.broker.background import Background, BackgroundSettings
from cursus.broker.machine import Machine, this_machine
from cursus.broker.open_storage import OpenStorage
from cursus.findings import CATALOGUE, STEP_NAMES, Finding, FormatError, Step
from cursus.replay.startup import Plan, StartupConfig, plan
from cursus.storage.errors import StoreError
from cursus.storage.locks import HeldLock
from cursus.storage.log_settings import LogSettings
from cursus.storage.manifest_store import TopicLimits

#: What a start names when it meets an error of the system that no finding describes.
_SYSTEM_ERROR: Final = "file_unreadable"


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides how storage is opened. ``topic_defaults``: fields of a new topic."""

    log: LogSettings = field(default_factory=LogSettings)
    startup: StartupConfig = field(default_factory=StartupConfig)
    topic_defaults: Mapping[str, Any] = field(default_factory=dict)
    background: BackgroundSettings = field(default_factory=BackgroundSettings)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Settings:
        """Pick them out of a broker's configuration; others are left alone."""
        return cls(
            LogSettings.from_settings(settings),
            StartupConfig.from_settings(settings),
            background=BackgroundSettings.from_settings(settings),
        )

    @property
    def limits(self) -> TopicLimits:
        """The limits on topics that a create request is held to."""
        config = self.startup
        return TopicLimits(
            max_topics=config.max_topics,
            max_partitions_per_topic=config.max_partitions_per_topic,
            max_partitions=config.max_partitions,
        )


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Why storage is not open: the first cause, where it stands, and what to do."""

    step: Step
    code: str
    path: str
    position: int | None
    reason: str
    action: str

    @property
    def step_name(self) -> str:
        """The recovery step, by its name in the contract."""
        return STEP_NAMES[self.step]

    @classmethod
    def of(cls, item: Finding) -> Diagnostics:
        """What a finding says."""
        return cls(item.step or 1, item.code, item.path, item.position, item.message, item.action)


class Runtime:
    """Storage of one log directory, from :meth:`start` to :meth:`close`.

    ``storage`` is open, or ``None``, and then ``diagnostics`` says why. The lock
    is held in both cases. ``plan`` is the judgement that decided. ``background`` is
    what the storage does by itself, and what of that fails; ``None`` without it.
    """

    def __init__(
        self, log_dir: str, settings: Settings, machine: Machine, lock: HeldLock | None
    ) -> None:
        self.log_dir = log_dir
        self.settings = settings
        self.storage: OpenStorage | None = None
        self.background: Background | None = None
        self.diagnostics: Diagnostics | None = None
        self.plan: Plan
        self._machine = machine
        self._lock = lock
        #: Who closes second comes back when it is done.
        self._closing = RLock()

    @classmethod
    def start(
        cls,
        log_dir: str,
        settings: Settings | None = None,
        machine: Machine | None = None,
        *,
        background: bool = True,
    ) -> Self:
        """Take the lock, judge, and open what the judgement lets open.

        ``background``: False for a caller who does by himself, as operations of the
        storage, what has to be done by the clock.

        Raises ``StorageLockedError`` when another process holds the directory,
        in diagnostics or not; ``LogDirectoryError`` and ``OSError`` when there
        is no directory to take. Anything that stands *in* the directory ends in
        :attr:`diagnostics`, never in an exception.
        """
        machine = this_machine() if machine is None else machine
        machine.make_log_dir(log_dir)
        lock: HeldLock | None = None
        try:
            lock = machine.lock_log_dir(log_dir)
            runtime = cls(log_dir, settings or Settings(), machine, lock)
            runtime._judge_and_open(background)
        except OSError:
            if lock is not None:
                lock.close()
                raise
            # No lock to take, for instance because a directory stands there: say so, if
            # the judgement does; whoever comes second meets the same.
            runtime = cls(log_dir, settings or Settings(), machine, None)
            if not runtime._refused():
                raise
        except BaseException:
            if lock is not None:
                lock.close()
            raise
        return runtime

    def _refused(self) -> bool:
        """Judge; True when that ends in diagnostics."""
        with self._machine.evidence(self.log_dir) as evidence:
            self.plan = plan(evidence, self.settings.startup, self._machine.moment())
        stops = self.plan.first_refusal
        if stops is None and self.plan.verdict == "undetermined":
            # What this process may not read, it cannot open either.
            stops = self.plan.first_cause
        if stops is not None:
            self.diagnostics = Diagnostics.of(stops)
        return stops is not None

    def _judge_and_open(self, background: bool) -> None:
        if self._refused():
            return
        storage = OpenStorage(self.log_dir, self.settings, self._machine)
        try:
            storage.open(self.plan)
        except (StoreError, FormatError, OSError) as error:
            self.diagnostics = _failure(error, storage.step)
            storage.abandon()
        else:
            self.storage = storage
            if background:
                self._begin_background(storage)

    def _begin_background(self, storage: OpenStorage) -> None:
        background = Background(storage, self.settings.background, self._machine)
        try:
            background.start()
        except BaseException:  # no thread to be had, for instance
            background.stop()
            storage.abandon()
            raise
        self.background = background

    @property
    def ready(self) -> bool:
        """Is storage open?"""
        return self.storage is not None

    def close(self) -> None:
        """Ordered shutdown; the lock goes last. Closing twice is allowed.

        Whoever still has the storage is refused from then on (``storage_closed``).
        Raises the first error of what could not be made durable; everything is
        let go all the same.
        """
        with self._closing:
            storage, self.storage = self.storage, None
            background, self.background = self.background, None
            lock, self._lock = self._lock, None
            try:
                if background is not None:
                    background.stop()
            finally:
                self._let_go(storage, lock)

    @staticmethod
    def _let_go(storage: OpenStorage | None, lock: HeldLock | None) -> None:
        try:
            if storage is not None:
                storage.close()
        finally:
            if lock is not None:
                lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _failure(error: StoreError | FormatError | OSError, step: Step) -> Diagnostics:
    if isinstance(error, OSError):
        path = error.filename if isinstance(error.filename, str) else ""
        action = CATALOGUE[_SYSTEM_ERROR].action
        return Diagnostics(step, _SYSTEM_ERROR, path, None, error.strerror or str(error), action)
    known = CATALOGUE.get(error.code)
    path = getattr(error, "path", "") or ""
    position = getattr(error, "position", None)
    action = known.action if known else ""
    return Diagnostics(step, error.code, path, position, error.message, action)
