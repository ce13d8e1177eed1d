"""Where frames begin: many places of a window followed at once, and proven.

Frames have no marks between them; the only way from one to the next is its
length prefix. A plain walk follows one prefix at a time. Here a window is cut
into strips, a place is guessed in each where a frame may begin, and the chains
of all guesses are followed in lockstep, one step of all of them an operation on
arrays.

Guesses come from the sparse index or from a search for the bytes that every
record of the partition begins with. None is believed. The first chain begins
where the frames before it end, so it is right; when it lands exactly on the
first guess, that chain is right as well, since it is what the plain walk would
do from there; and so on. At the first chain that misses the next guess the rest
of the window is walked plainly. The result is that of a plain walk, always.

Source: segments.md sections 3 and 5; design, principle 9.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cursus.formats.record import MAX_RECORD_BYTES, MIN_RECORD_BYTES
from cursus.formats.record_columns import SLACK, Bytes, Int64s

#: Chains that are followed at once, at most.
LANES: Final = 512
#: Fewer frames than this to a chain, by the last window's measure, and it is not worth it.
_FRAMES_A_LANE: Final = 8
#: With so few chains left, each is walked to its end plainly.
_FEW: Final = 8
_U32 = struct.Struct(">I")
_SHORTEST: Final = np.uint32(MIN_RECORD_BYTES)
_RANGE: Final = np.uint32(MAX_RECORD_BYTES - MIN_RECORD_BYTES)


@dataclass(frozen=True, slots=True)
class Walked:
    """Frames that follow each other from ``begin`` on, whole ones only.

    ``starts``: where each begins in the buffer. ``stop``: the first byte behind
    them. ``invalid``: a length that no record has stands there; otherwise the
    next frame is not whole in the buffer.
    """

    starts: Int64s
    stop: int
    invalid: bool


def walk(
    buffer: bytearray,
    data: Bytes,
    filled: int,
    *,
    needle: bytes,
    guesses: Int64s | None = None,
    frame_bytes: int = 0,
    lanes: int = LANES,
) -> Walked:
    """Follow the frames of ``buffer[:filled]`` from byte 0 on.

    ``data`` is the same buffer as an array, with SLACK bytes behind ``filled``.
    ``guesses``: where frames may begin, ascending (from an index), ``None`` to
    search for ``needle`` instead. ``frame_bytes``: how long frames are about,
    0 when nothing is known.
    """
    if len(data) < filled + SLACK:
        raise ValueError("too few bytes behind the window")
    wanted = min(lanes, filled // max(frame_bytes * _FRAMES_A_LANE, 4 * MIN_RECORD_BYTES))
    if wanted < 2 * _FEW:
        return _plain(buffer, 0, filled)
    while True:
        places = _places(buffer, filled, needle, guesses, wanted)
        if len(places) < 2 * _FEW:
            return _plain(buffer, 0, filled)
        starts, proven, stop, invalid = _lockstep(buffer, data, filled, places)
        if proven:
            return Walked(starts, stop, invalid)
        if guesses is None:
            break
        guesses = None  # an index of something else: search instead
    rest = _plain(buffer, stop, filled)
    return Walked(np.concatenate((starts, rest.starts)), rest.stop, rest.invalid)


def _plain(buffer: bytearray, begin: int, end: int) -> Walked:
    """One frame after the other, up to the first that is not whole before ``end``."""
    starts: list[int] = []
    at, invalid = begin, False
    unpack, last = _U32.unpack_from, end - 4
    append = starts.append
    while at <= last:
        (length,) = unpack(buffer, at)
        if not MIN_RECORD_BYTES <= length <= MAX_RECORD_BYTES:
            invalid = True
            break
        following = at + 4 + length
        if following > end:
            break
        append(at)
        at = following
    return Walked(np.array(starts, np.int64), at, invalid)


def _places(
    buffer: bytearray, filled: int, needle: bytes, guesses: Int64s | None, wanted: int
) -> Int64s:
    """0, and about ``wanted`` places behind it where frames may begin, ascending."""
    strip = filled // wanted
    targets = np.arange(1, wanted, dtype=np.int64) * strip
    if guesses is not None and len(guesses) >= wanted // 2:
        near = np.searchsorted(guesses, targets)
        places = np.unique(guesses[near[near < len(guesses)]])
        if len(places) >= wanted // 2:
            return np.concatenate((np.zeros(1, np.int64), places))
    found = [0]
    for target in targets.tolist():
        if target <= found[-1]:
            continue
        at = buffer.find(needle, target + 4, filled)
        if at < 0:
            break
        found.append(at - 4)
    return np.array(found, np.int64)


def _lockstep(
    buffer: bytearray, data: Bytes, filled: int, places: Int64s
) -> tuple[Int64s, bool, int, bool]:
    """Follow all chains; returns the starts that are proven, whether that is all of the
    window, where they stop and whether an invalid length stands there.
    """
    prefixes: NDArray[np.uint32] = np.ndarray((len(data) - 3,), ">u4", data, strides=(1,))
    lane = np.arange(len(places))
    at = places
    goal = np.append(places[1:], filled - 3)  # a prefix that is not whole is no frame
    landed = np.empty(len(places), np.int64)
    invalid = np.zeros(len(places), np.bool_)
    steps: list[Int64s] = []
    while len(at) > _FEW:
        # A chain is inside of the window here, so its prefix is inside of the buffer.
        length = prefixes[at].astype(np.uint32)
        following = at + length + 4
        going = following < goal
        valid = (length - _SHORTEST) <= _RANGE  # unsigned: what is too short wraps
        if not valid.all():
            bad = ~valid
            invalid[lane[bad]] = True
            landed[lane[bad]] = at[bad]
            going &= valid
            steps.append(at[valid])
            arrived = valid & ~going
        else:
            steps.append(at)
            if going.all():
                at = following
                continue
            arrived = ~going
        landed[lane[arrived]] = following[arrived]
        lane, at, goal = lane[going], following[going], goal[going]
    for number, begin, end in zip(lane.tolist(), at.tolist(), goal.tolist(), strict=True):
        # The last frame of a chain may be one that begins before its goal and ends behind.
        walked = _chain(buffer, begin, end)
        landed[number], invalid[number] = walked.stop, walked.invalid
        steps.append(walked.starts)
    missed = np.flatnonzero((landed[:-1] != places[1:]) | invalid[:-1])
    starts = np.sort(np.concatenate(steps))
    last = int(missed[0]) if len(missed) else len(places) - 1
    if len(missed):
        starts = starts[: np.searchsorted(starts, places[last + 1])]
    stop = int(landed[last])
    if stop > filled:
        # The frame that leads out of the window is not whole.
        stop, starts = int(starts[-1]), starts[:-1]
        return starts, True, stop, False
    ended = bool(invalid[last]) or last == len(places) - 1
    return starts, ended, stop, bool(invalid[last])


def _chain(buffer: bytearray, begin: int, goal: int) -> Walked:
    """As :func:`_plain`, up to the first frame that begins at or behind ``goal``."""
    starts: list[int] = []
    at, invalid = begin, False
    unpack = _U32.unpack_from
    while at < goal:
        (length,) = unpack(buffer, at)
        if not MIN_RECORD_BYTES <= length <= MAX_RECORD_BYTES:
            invalid = True
            break
        starts.append(at)
        at += 4 + length
    return Walked(np.array(starts, np.int64), at, invalid)
