"""Settings of partition logs, by the names that they have in a configuration.

The storage takes any value; :meth:`LogSettings.corrected` is what a broker
applies to what an operator wrote (segments.md section 21).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self, TypeVar

DELETE: Final = "delete"
COMPACT: Final = "compact"
_SMALLEST_SEGMENT: Final = 1024
_SMALLEST_INDEX: Final = 1 << 20
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Sizes in bytes, times as their names say; a limit of 0 or less is off.

    ``min_free_bytes`` and ``min_free_percent`` are ours, since the names of the
    free-space settings are not established (segments.md section 23).
    ``event_sourcing`` is the topic's mode: such a log is never compacted.
    """

    log_segment_bytes: int = 1 << 30
    log_segment_roll_ms: int = 604_800_000
    log_index_size_bytes: int = 10 << 20
    log_index_interval_bytes: int = 4096
    log_cleanup_policy: str = DELETE
    log_retention_hours: float = 168
    log_retention_bytes: int = -1
    log_min_cleanable_dirty_ratio: float = 0.5
    disk_flush_batch_size: int = 50
    linger_ms: int = 50
    disk_flush_interval_ms: int = 500
    disk_write_timeout_ms: int = 10
    channel_buffer_size: int = 1024
    min_free_bytes: int = 0
    min_free_percent: float = 0
    event_sourcing: bool = False

    @property
    def policies(self) -> frozenset[str]:
        """The cleanup policy as a set: ``delete``, ``compact`` or both."""
        return frozenset(cleanup_policy(self.log_cleanup_policy).split(","))

    def corrected(self) -> Self:
        """With the corrections that a broker applies to bad values."""
        return replace(
            self,
            log_segment_bytes=self.log_segment_bytes
            if self.log_segment_bytes >= _SMALLEST_SEGMENT
            else 1 << 20,
            log_segment_roll_ms=max(self.log_segment_roll_ms, 0),
            log_index_size_bytes=self.log_index_size_bytes
            if self.log_index_size_bytes >= _SMALLEST_INDEX
            else 10 << 20,
            log_index_interval_bytes=_positive(self.log_index_interval_bytes, 4096),
            log_cleanup_policy=cleanup_policy(self.log_cleanup_policy),
            log_retention_hours=_positive(self.log_retention_hours, 168),
            log_retention_bytes=self.log_retention_bytes or -1,
            log_min_cleanable_dirty_ratio=dirty_ratio(self.log_min_cleanable_dirty_ratio),
            disk_flush_batch_size=_positive(self.disk_flush_batch_size, 50),
            linger_ms=max(self.linger_ms, 0),
            disk_flush_interval_ms=_positive(self.disk_flush_interval_ms, 1000),
            disk_write_timeout_ms=_positive(self.disk_write_timeout_ms, 10),
            channel_buffer_size=_positive(self.channel_buffer_size, 100_000),
        )

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Pick them out of a broker's configuration, corrected; others are left alone."""
        known = {item.name for item in fields(cls)}
        return cls(**{name: settings[name] for name in known & set(settings)}).corrected()

    def for_topic(
        self,
        *,
        retention_hours: int = 0,
        retention_bytes: int = 0,
        policy: str = "",
        event_sourcing: bool = False,
    ) -> Self:
        """The settings of one topic; 0 and ``""`` inherit (segments.md section 12).

        An event-sourcing topic inherits no limits: aggregates are built from all of
        its events (manifest.md section 2.4).
        """
        unlimited = -1 if event_sourcing else 0
        return replace(
            self,
            log_retention_hours=unlimited or retention_hours or self.log_retention_hours,
            log_retention_bytes=unlimited or retention_bytes or self.log_retention_bytes,
            log_cleanup_policy=policy or self.log_cleanup_policy,
            event_sourcing=event_sourcing,
        )


def cleanup_policy(text: str) -> str:
    """``delete``, ``compact`` or ``delete,compact``; what is neither means ``delete``."""
    found = {part.strip().lower() for part in text.split(",")}
    if not found <= {DELETE, COMPACT}:
        return DELETE
    return ",".join(name for name in (DELETE, COMPACT) if name in found)


def dirty_ratio(value: float) -> float:
    """The ratio, 0.5 where it lies outside (0, 1)."""
    return value if 0 < value < 1 else 0.5


def _positive(value: Number, otherwise: Number) -> Number:
    return value if value > 0 else otherwise
