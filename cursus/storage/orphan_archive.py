"""Move one topic directory that nobody declares out of a log directory.

The move is one ``renameat2`` with the no-replace flag between two directories
that are held open, so nothing can be replaced and nothing is ever copied: on
another device it fails and everything stays where it was. The manifest is not
edited, nothing is deleted. The archive directory may not lie in the log
directory, neither by its name nor physically.

The storage is looked at twice; if the two inventories differ, somebody is
writing and nothing moves. A broker that holds ``.cursus.lock`` is refused. The
lock is held while the directory moves, and the file is never created.

Source: manifest.md section 9; segments.md section 17.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from cursus import layout
from cursus.formats.topic_manifest import check_topic_name

_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RENAME_NOREPLACE: Final = 1  # linux/fs.h
_RENAME_EXCL: Final = 4  # sys/stdio.h of macOS
#: Number of the system call where the C library has no function for it.
_SYS_RENAMEAT2: Final = {"x86_64": 316, "aarch64": 276, "riscv64": 276, "s390x": 347, "i686": 353}
_ARCHIVE_MODE: Final = 0o700


class ProblemView(Protocol):
    """A problem of an inventory: a path below the log directory and a sentence."""

    @property
    def path(self) -> str: ...

    @property
    def message(self) -> str: ...


class InventoryView(Protocol):
    """What the archive needs of an inventory; two of them are compared as a whole."""

    @property
    def manifest_topics(self) -> Sequence[str]: ...

    @property
    def topic_names(self) -> Sequence[str]: ...

    @property
    def problems(self) -> Sequence[ProblemView]: ...

    @property
    def in_use(self) -> bool | None: ...


class ArchiveError(Exception):
    """The archive did not do it, or not completely. ``code`` is that of manifest.md section 9."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class ArchiveResult:
    """What has happened so far; valid whether or not an error was raised.

    ``changed``: the directory was moved. ``committed``: the move is the state
    of the storage now. ``problems``: those of the topic.
    """

    changed: bool = False
    committed: bool = False
    source: str = ""
    destination: str = ""
    problems: Sequence[ProblemView] = ()


def archive_orphan(
    log_dir: str,
    archive_dir: str,
    topic: str,
    *,
    dry_run: bool,
    take_inventory: Callable[[str], InventoryView],
    result: ArchiveResult,
) -> None:
    """Move ``log_dir/topic`` to ``archive_dir/topic``; ``result`` is filled on the way.

    Raises :class:`ArchiveError`, ``FormatError`` for the topic name, and
    whatever ``take_inventory`` raises.
    """
    check_topic_name(topic)
    if not archive_dir.strip():
        raise ArchiveError("archive_dir_blank", "the archive directory is not given")
    first = take_inventory(log_dir)
    if topic in first.manifest_topics:
        raise ArchiveError(
            "topic_declared_in_manifest", f"topic {topic} is declared in the manifest"
        )
    if topic not in first.topic_names:
        raise ArchiveError(
            "topic_not_orphan_candidate", f"{topic} is not a directory that holds topic logs"
        )
    log_dir, archive_dir = _absolute(log_dir), _absolute(archive_dir)
    with ExitStack() as stack:
        if not dry_run:
            stack.enter_context(_broker_lock(log_dir))
        elif first.in_use:
            raise ArchiveError("log_dir_in_use", f"a broker is using {log_dir}")
        _check_archive_dir(archive_dir, must_exist=False)
        if _is_below(archive_dir, log_dir):
            raise ArchiveError("archive_dir_inside_log_dir", f"{archive_dir} lies in {log_dir}")
        _check_physically(archive_dir, log_dir)
        result.source = os.path.join(log_dir, topic)
        result.destination = os.path.join(archive_dir, topic)
        result.problems = [
            item
            for item in first.problems
            if item.path == topic or item.path.startswith(f"{topic}/")
        ]
        if _exists(result.destination):
            raise ArchiveError("archive_destination_exists", f"{result.destination} exists")
        if dry_run:
            return
        _make_directories(archive_dir)
        _check_archive_dir(archive_dir, must_exist=True)
        _check_physically(archive_dir, log_dir)
        source_fd = _open_directory(stack, log_dir, "archive_rename_failed")
        target_fd = _open_directory(stack, archive_dir, "archive_dir_not_real_directory")
        _check_not_inside(target_fd, source_fd, archive_dir, log_dir)
        if take_inventory(log_dir) != first:
            raise ArchiveError(
                "storage_changed_during_validation",
                f"{log_dir} changed while it was being examined; stop every writer first",
            )
        with _uninterrupted():
            _move(source_fd, target_fd, topic, result)
            _sync(source_fd, log_dir)
            _sync(target_fd, archive_dir)


def _absolute(path: str) -> str:
    try:
        return layout.absolute(path)
    except OSError as error:
        raise ArchiveError(
            "archive_dir_unresolvable", f"{path}: {error.strerror or error}"
        ) from None


# -- may it go there? ----------------------------------------------------------------


def _check_archive_dir(archive_dir: str, *, must_exist: bool) -> None:
    try:
        found = os.lstat(archive_dir)
    except FileNotFoundError:
        if not must_exist:
            return
        raise ArchiveError(
            "archive_dir_not_real_directory", f"{archive_dir} does not exist"
        ) from None
    except (OSError, ValueError) as error:
        raise ArchiveError("archive_dir_unresolvable", f"{archive_dir}: {_reason(error)}") from None
    if not stat.S_ISDIR(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a directory"
        raise ArchiveError("archive_dir_not_real_directory", f"{archive_dir} is {what}")


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _check_physically(archive_dir: str, log_dir: str) -> None:
    if _is_below(_physical(archive_dir), _physical(log_dir)):
        raise ArchiveError(
            "archive_dir_resolves_inside_log_dir", f"{archive_dir} leads into {log_dir}"
        )


def _physical(path: str) -> str:
    """The nearest existing ancestor with all links resolved, and what is missing behind it."""
    missing: list[str] = []
    ancestor = path
    try:
        while not _lexists(ancestor):
            ancestor, name = os.path.split(ancestor)
            missing.append(name)
        return os.path.join(os.path.realpath(ancestor, strict=True), *reversed(missing))
    except (OSError, ValueError) as error:
        raise ArchiveError("archive_dir_unresolvable", f"{path}: {_reason(error)}") from None


def _lexists(path: str) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _exists(destination: str) -> bool:
    try:
        return _lexists(destination)
    except OSError as error:
        raise ArchiveError("archive_dir_unresolvable", f"{destination}: {_reason(error)}") from None


def _check_not_inside(target_fd: int, source_fd: int, archive_dir: str, log_dir: str) -> None:
    """Climb from the open archive directory: none of its parents is the log directory."""
    wanted = _identity(os.fstat(source_fd))
    with ExitStack() as stack:
        fd = target_fd
        here = _identity(os.fstat(fd))
        while True:
            if here == wanted:
                raise ArchiveError(
                    "archive_dir_resolves_inside_log_dir", f"{archive_dir} leads into {log_dir}"
                )
            try:
                fd = os.open("..", _DIRECTORY_FLAGS, dir_fd=fd)
            except OSError:
                return  # a parent that may not be opened; its path was checked before
            stack.callback(os.close, fd)
            above = _identity(os.fstat(fd))
            if above == here:
                return
            here = above


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


@contextmanager
def _broker_lock(log_dir: str) -> Iterator[None]:
    """Hold the lock of the directory, if a broker ever made one. The file is not created."""
    path = os.path.join(log_dir, layout.LOG_DIR_LOCK)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        fd = os.open(path, flags)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise ArchiveError(
            "log_dir_in_use", f"{path}: the lock cannot be tested: {_reason(error)}"
        ) from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            busy = error.errno in {errno.EWOULDBLOCK, errno.EACCES}
            reason = "a broker holds it" if busy else _reason(error)
            raise ArchiveError("log_dir_in_use", f"{path}: {reason}") from None
        yield
    finally:
        os.close(fd)


# -- the move ------------------------------------------------------------------------


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits, so that ``result`` says what has happened."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _make_directories(path: str) -> None:
    """Create ``path`` with its parents, each 0700."""
    missing: list[str] = []
    while path and not os.path.isdir(path):
        missing.append(path)
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent
    for directory in reversed(missing):
        try:
            os.mkdir(directory, _ARCHIVE_MODE)
        except FileExistsError:
            continue  # someone else made it; what it is is looked at afterwards
        except OSError as error:
            raise ArchiveError(
                "archive_dir_create_failed", f"{directory}: {_reason(error)}"
            ) from None


def _open_directory(stack: ExitStack, path: str, code: str) -> int:
    try:
        fd = os.open(path, _DIRECTORY_FLAGS)
    except OSError as error:
        raise ArchiveError(code, f"{path}: {_reason(error)}") from None
    stack.callback(os.close, fd)
    return fd


def _move(source_fd: int, target_fd: int, topic: str, result: ArchiveResult) -> None:
    what = f"{result.source} -> {result.destination}"
    try:
        rename_exclusively(source_fd, topic, target_fd, topic)
    except NotImplementedError as error:
        raise ArchiveError("exclusive_rename_unsupported", f"{what}: {error}") from None
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
            raise ArchiveError(
                "exclusive_rename_unsupported",
                f"{what}: this file system has no rename that refuses to replace",
            ) from None
        raise ArchiveError("archive_rename_failed", f"{what}: {_reason(error)}") from None
    result.changed = result.committed = True


def rename_exclusively(source_fd: int, source: str, target_fd: int, target: str) -> None:
    """Rename between two open directories; never replaces what stands at the target.

    Raises ``OSError`` (``EEXIST``, ``EXDEV``, …), ``NotImplementedError`` where
    the platform has no such call.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(source), os.fsencode(target)
    if sys.platform == "darwin":
        call = getattr(libc, "renameatx_np", None)
        if call is None:
            raise NotImplementedError("the platform has no exclusive rename")
        failed = call(source_fd, names[0], target_fd, names[1], ctypes.c_uint(_RENAME_EXCL))
    elif sys.platform == "linux":
        call = getattr(libc, "renameat2", None)
        flags = ctypes.c_uint(_RENAME_NOREPLACE)
        if call is not None:
            failed = call(source_fd, names[0], target_fd, names[1], flags)
        elif (number := _SYS_RENAMEAT2.get(platform.machine())) is not None:
            failed = libc.syscall(
                ctypes.c_long(number), source_fd, names[0], target_fd, names[1], flags
            )
        else:
            raise NotImplementedError("the platform has no exclusive rename")
    else:
        raise NotImplementedError("the platform has no exclusive rename")
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _sync(fd: int, path: str) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        raise ArchiveError(
            "archive_sync_failed",
            f"the directory was moved, but {path} could not be synced: {_reason(error)}",
        ) from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
