"""RFC 3339 times with nanoseconds, as Cursus storage writes them.

    2026-09-02T00:00:00.123456789Z       fraction of up to nine digits

Times compare as instants: :func:`parse` gives nanoseconds since the zero time
``0001-01-01T00:00:00Z``, an ``int``, since ``datetime`` drops three digits.
:func:`canonical` gives the UTC text with trailing zeros of the fraction
removed; years outside 0 … 9999 have none.

Source: consumer-metadata.md section 2.2; journal.md section 1.4.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final

NANOSECOND: Final = 1
SECOND: Final = 1_000_000_000
ZERO: Final = 0
ZERO_TEXT: Final = "0001-01-01T00:00:00Z"
_DAY: Final = 86_400
_PATTERN: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]{1,64}))?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)
_EPOCH_SECONDS: Final = date(1970, 1, 1).toordinal() * _DAY - _DAY


def parse(text: str) -> int:
    """Nanoseconds since the zero time. Raises ``ValueError`` for anything but RFC 3339."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError("not an RFC 3339 time")
    year, month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5, 6))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("hour, minute or second out of range")
    fraction = int((match[7] or "0")[:9].ljust(9, "0"))
    offset = 0
    if match[8]:
        zone_hour, zone_minute = int(match[9]), int(match[10])
        if zone_hour > 24 or zone_minute > 59:
            raise ValueError("zone out of range")
        offset = (zone_hour * 60 + zone_minute) * 60 * (-1 if match[8] == "-" else 1)
    seconds = (_ordinal(year, month, day) - 1) * _DAY + hour * 3600 + minute * 60 + second
    return (seconds - offset) * SECOND + fraction


def _ordinal(year: int, month: int, day: int) -> int:
    if year == 0:  # a leap year that ``date`` does not know
        return date(4, month, day).toordinal() - date(4, 1, 1).toordinal() + 1 - 366
    return date(year, month, day).toordinal()


def canonical(nanoseconds: int) -> str:
    """UTC text of an instant. Raises ``ValueError`` outside the years 0 to 9999."""
    seconds, fraction = divmod(nanoseconds, SECOND)
    tail = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{_second(seconds)}{tail}Z"


@lru_cache(maxsize=64)  # many moments of one second, when it is always now
def _second(seconds: int) -> str:
    days, second_of_day = divmod(seconds, _DAY)
    if -366 <= days < 0:  # the year 0
        day = date(4, 1, 1) + timedelta(days=days + 366)
        text = f"0000-{day.month:02d}-{day.day:02d}"
    else:
        try:
            text = date.fromordinal(days + 1).isoformat()
        except (ValueError, OverflowError):
            raise ValueError("year outside 0 to 9999") from None
    hour, rest = divmod(second_of_day, 3600)
    return f"{text}T{hour:02d}:{rest // 60:02d}:{rest % 60:02d}"


def from_datetime(moment: datetime) -> int:
    """Nanoseconds since the zero time of an aware ``datetime``."""
    since = moment.astimezone(UTC) - datetime(1, 1, 1, tzinfo=UTC)
    return (since.days * _DAY + since.seconds) * SECOND + since.microseconds * 1000


def from_unix_ns(nanoseconds: int) -> int:
    """Nanoseconds since the zero time of a Unix time in nanoseconds."""
    return nanoseconds + _EPOCH_SECONDS * SECOND
