"""Which disk states a crash could leave, from the trace of a workload.

The model, event by event of :class:`crash.memory.Event`:

* **Files.** ``fsync`` makes the bytes of an inode durable. What was written,
  cut or stamped since then is *pending*: a crash keeps any prefix of it, and of
  the first operation that is not kept, if it is a write, any number of leading
  bytes (a torn write). Bytes of one file arrive in the order in which they were
  written.
* **A failed fsync.** The kernel may have dropped what it could not write, and calls it
  clean: a crash keeps it or not, as before, but no later fsync makes it durable. What
  comes behind it then stands behind zeros.
* **Names.** ``sync_directory`` makes the names of one directory durable. What
  was created, renamed or removed since then is pending: a crash keeps any
  *subset*, in any combination over the directories. (File systems that log
  their metadata keep a prefix of it; POSIX promises nothing, so the wider set
  is tried.) A rename within a directory is atomic. An ``fsync`` of a file makes
  no name durable.
* **Moments.** A crash comes after any event, so every prefix of the trace is a
  start of states: with everything pending kept, everything lost, and mixtures.

Limits, and why they are there:

* A file never grows by zeros that nobody wrote, and a sector that was durable
  never changes. A file system that extends a file before its data arrive
  (ext4 ``data=writeback``) can leave a zero-filled tail; storage *refuses*
  such a tail of four bytes or more by design (segments.md section 10), so
  there is nothing to survive.
* Pending writes of one file are not reordered among each other. Reordered
  appends leave such zeros too; the only files that are overwritten in place
  are indexes, which every start checks entry by entry against the log.
* Renames between directories are not modelled: the engine has none.
* Modes and times of files are kept or lost with the bytes around them; those
  of directories are not modelled.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from crash.memory import ROOT_INODE, Directory, Event, Leaf, Tree

#: Pending operations of one file of which every prefix is tried.
LONG: Final = 8
#: Pending name operations of one directory whose subsets are all tried.
ALL_SUBSETS: Final = 4


@dataclass(slots=True)
class _File:
    """A file: what is durable, and what is pending behind it."""

    durable: Leaf = field(default_factory=lambda: Leaf(b""))
    pending: list[Event] = field(default_factory=list)
    #: ``kept[k]``: the file with the first k pending operations.
    kept: list[Leaf] = field(default_factory=list)
    #: So many pending operations were there when an fsync failed.
    dropped: int = 0

    def __post_init__(self) -> None:
        self.kept = [self.durable]

    def add(self, event: Event) -> None:
        self.pending.append(event)
        self.kept.append(_apply(self.kept[-1], event))

    def sync(self) -> None:
        leaf = self.kept[-1]
        if self.dropped:
            leaf = self.durable
            for number, event in enumerate(self.pending):
                if number >= self.dropped or event.kind != "write":
                    leaf = _apply(leaf, event)
        self.durable = leaf
        self.pending, self.dropped = [], 0
        self.kept = [self.durable]

    def sync_failed(self) -> None:
        self.dropped = len(self.pending)

    def choices(self, rng: random.Random, tears: int) -> list[Leaf]:
        """Everything kept first, nothing kept last, in between prefixes and torn writes.

        Of a long row of pending operations (an index is synced seldom) the first
        ones, the last ones and a sample are looked at.
        """
        count = len(self.pending)
        ends: Sequence[int] = range(count + 1)
        if count > LONG:
            chosen = {0, 1, count - 2, count - 1, count, *rng.sample(range(count), 3)}
            ends = sorted(chosen)
        found = [self.kept[end] for end in reversed(ends)]
        for at in ends[:-1]:
            event = self.pending[at]
            if event.kind == "write" and len(event.data) > 1:
                for cut in _cuts(len(event.data), rng, tears):
                    torn = Event("write", position=event.position, data=event.data[:cut])
                    found.insert(-1, _apply(self.kept[at], torn))
        return found


def _cuts(length: int, rng: random.Random, tears: int) -> list[int]:
    """Bytes of a write that arrive: the edges always, else a sample."""
    edges = {1, 3, 4, 5, length - 1, length // 2}
    edges |= {rng.randrange(1, length) for _ in range(tears)}
    found = sorted(cut for cut in edges if 0 < cut < length)
    return found if len(found) <= tears else sorted(rng.sample(found, tears))


def _apply(leaf: Leaf, event: Event) -> Leaf:
    if event.kind == "write":
        data = leaf.data
        if event.position > len(data):
            data += bytes(event.position - len(data))
        data = data[: event.position] + event.data + data[event.position + len(event.data) :]
        return Leaf(data, leaf.mode, leaf.mtime_ns)
    if event.kind == "truncate":
        data = leaf.data[: event.position]
        return Leaf(data + bytes(event.position - len(data)), leaf.mode, leaf.mtime_ns)
    if event.kind == "chmod":
        return Leaf(leaf.data, event.position, leaf.mtime_ns)
    return Leaf(leaf.data, leaf.mode, event.position)


@dataclass(slots=True)
class _Directory:
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[Event] = field(default_factory=list)

    def names(self, kept: Iterable[int]) -> dict[str, int]:
        """The names when these pending operations, in order, were kept."""
        found = dict(self.durable)
        for at in kept:
            event = self.pending[at]
            if event.kind in {"create", "mkdir"}:
                found[event.name] = event.child
            elif event.kind == "rename":
                found.pop(event.name, None)
                found[event.target] = event.child
            else:
                found.pop(event.name, None)
        return found

    def sync(self) -> None:
        self.durable = self.names(range(len(self.pending)))
        self.pending = []

    def choices(self, rng: random.Random, more: int) -> list[dict[str, int]]:
        """Everything kept first, nothing kept last; prefixes, and other subsets between."""
        count = len(self.pending)
        subsets: dict[tuple[int, ...], None] = {}
        for k in range(count, -1, -1):
            subsets[tuple(range(k))] = None
        if count <= ALL_SUBSETS:
            for mask in range(1 << count):
                subsets[tuple(at for at in range(count) if mask >> at & 1)] = None
        else:
            for at in range(count):  # each one alone, and all but one
                subsets[(at,)] = None
                subsets[tuple(other for other in range(count) if other != at)] = None
            for _ in range(more):
                mask = rng.getrandbits(count)
                subsets[tuple(at for at in range(count) if mask >> at & 1)] = None
        nothing = subsets.pop((), None)
        found = [self.names(kept) for kept in subsets]
        return [*found, self.names(())] if nothing is None else found


class Disk:
    """What is durable and what is pending at one moment of a trace."""

    def __init__(self, root: Directory | None = None) -> None:
        """A disk on which everything below ``root`` is durable; an empty one without it."""
        self.files: dict[int, _File] = {}
        self.directories: dict[int, _Directory] = {ROOT_INODE: _Directory()}
        waiting = [root] if root is not None else []
        while waiting:
            here = waiting.pop()
            names = self.directories[here.number] = _Directory()
            for name, found in here.entries.items():
                names.durable[name] = found.number
                if isinstance(found, Directory):
                    waiting.append(found)
                else:
                    self.files[found.number] = _File(
                        Leaf(bytes(found.data), found.mode, found.mtime_ns)
                    )

    def take(self, event: Event) -> None:
        """Let one event happen."""
        kind = event.kind
        if kind in {"write", "truncate", "chmod", "utime"}:
            self.files[event.inode].add(event)
        elif kind == "fsync":
            self.files[event.inode].sync()
        elif kind == "fsync_failed":
            self.files[event.inode].sync_failed()
        elif kind == "sync_directory":
            self.directories[event.inode].sync()
        elif kind != "mark":
            if kind == "create":
                self.files[event.child] = _File()
            elif kind == "mkdir":
                self.directories[event.child] = _Directory()
            self.directories[event.inode].pending.append(event)

    # -- states ------------------------------------------------------------------------

    def states(self, rng: random.Random, *, tears: int = 2, mixtures: int = 4) -> Iterator[Tree]:
        """Trees that a crash at this moment could leave; the same one may come twice.

        All kept, all lost; each pending object varied on its own, once against a
        background of all kept and once of all lost; ``mixtures`` random ones.
        """
        files = {n: f.choices(rng, tears) for n, f in self.files.items() if f.pending}
        names = {n: d.choices(rng, mixtures) for n, d in self.directories.items() if d.pending}
        kept = _Choice({n: c[0] for n, c in files.items()}, {n: c[0] for n, c in names.items()})
        lost = _Choice({n: c[-1] for n, c in files.items()}, {n: c[-1] for n, c in names.items()})
        yield self._tree(kept)
        yield self._tree(lost)
        for number, leaves in files.items():
            for leaf in leaves:
                yield self._tree(kept.with_file(number, leaf))
                yield self._tree(lost.with_file(number, leaf))
            # Bytes lost behind names that are kept, and the other way round.
            yield self._tree(_Choice({**lost.files, number: leaves[0]}, kept.names))
            yield self._tree(_Choice({**kept.files, number: leaves[-1]}, kept.names))
        for number, choices in names.items():
            for entries in choices:
                yield self._tree(kept.with_names(number, entries))
                yield self._tree(lost.with_names(number, entries))
                yield self._tree(_Choice(lost.files, {**kept.names, number: entries}))
        if files or names:
            for _ in range(mixtures):
                yield self._tree(
                    _Choice(
                        {n: rng.choice(c) for n, c in files.items()},
                        {n: rng.choice(c) for n, c in names.items()},
                    )
                )

    def _tree(self, choice: _Choice) -> Tree:
        found: dict[str, Leaf | None] = {}
        waiting = [("", ROOT_INODE)]
        while waiting:
            prefix, number = waiting.pop()
            entries = choice.names.get(number)
            if entries is None:
                entries = self.directories[number].durable
            for name, child in entries.items():
                path = f"{prefix}{name}"
                if child in self.directories:
                    found[path] = None
                    waiting.append((f"{path}/", child))
                else:
                    leaf = choice.files.get(child)
                    found[path] = self.files[child].durable if leaf is None else leaf
        return found


@dataclass(frozen=True, slots=True)
class _Choice:
    """What became of everything that was pending; what is not named was durable."""

    files: Mapping[int, Leaf]
    names: Mapping[int, dict[str, int]]

    def with_file(self, number: int, leaf: Leaf) -> _Choice:
        return _Choice({**self.files, number: leaf}, self.names)

    def with_names(self, number: int, entries: dict[str, int]) -> _Choice:
        return _Choice(self.files, {**self.names, number: entries})


def fingerprint(tree: Tree) -> bytes:
    """Equal for trees of equal names and bytes; modes and times do not count."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(tree):
        leaf = tree[path]
        digest.update(path.encode("utf-8", "surrogateescape"))
        if leaf is None:
            digest.update(b"\0d")
        else:
            digest.update(b"\0f")
            digest.update(_digest(leaf.data))
    return digest.digest()


@lru_cache(maxsize=1 << 16)
def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


@dataclass(slots=True)
class State:
    """One disk state, and the moments (counts of events) at which a crash leaves it.

    A tree may come back: what was made and removed again leaves the one from before.
    So the moments need not be all of those between ``first`` and ``last``.
    """

    tree: Tree
    moments: list[int]

    @property
    def first(self) -> int:
        return self.moments[0]

    @property
    def last(self) -> int:
        return self.moments[-1]


def crash_states(
    trace: Sequence[Event],
    *,
    seed: int,
    disk: Disk | None = None,
    tears: int = 2,
    mixtures: int = 4,
) -> list[State]:
    """Distinct states over all prefixes of ``trace``, in the order of their first moment.

    Moments count events that happened before the crash. ``disk``: where the trace
    begins (it is changed); an empty one if not given.
    """
    rng = random.Random(seed)
    found: dict[bytes, State] = {}
    recent: list[State] = []
    disk = Disk() if disk is None else disk
    for moment in range(len(trace) + 1):
        if moment:
            disk.take(trace[moment - 1])
            if trace[moment - 1].kind == "mark":  # the disk is as it was: so are its states
                for state in recent:
                    state.moments.append(moment)
                continue
        recent = []
        for tree in disk.states(rng, tears=tears, mixtures=mixtures):
            key = fingerprint(tree)
            state = found.get(key)
            if state is None:
                found[key] = State(tree, [moment])
                recent.append(found[key])
            elif state.last != moment:
                state.moments.append(moment)
                recent.append(state)
    return list(found.values())
