"""Locks of a store: ``flock`` on files that are never written and never removed.

A lock file says nothing by existing. The lock is the kernel's, so it ends with
the process, however that ends. ``flock`` and not POSIX record locks: the two do
not exclude each other, and a POSIX lock is lost when *any* descriptor of the
file closes. An inspector takes none (it reads ``/proc/locks``).

Source: segments.md section 17; spec/README.md decision 15.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from typing import Final, Protocol, Self

from cursus import layout


class StorageLockedError(RuntimeError):
    """Somebody else holds the lock file ``path``."""

    code: Final = "storage_locked"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is held by another process: stop it, or use another directory")
        self.path = path


class HeldLock(Protocol):
    """A lock that is held until it is closed."""

    def close(self) -> None: ...


#: Takes the lock of one partition: (log_dir, topic, partition).
TakeLock = Callable[[str, str, int], HeldLock]


class FileLock:
    """An exclusive lock, held from construction until :meth:`close`.

    The file is created (0600) if it is absent, and stays. Raises
    :class:`StorageLockedError` at once when the lock is held, in this process
    too, and ``OSError`` when the file cannot be opened or is no regular file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise OSError(f"{path} is not a regular file")
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StorageLockedError(path) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go; the file stays. Closing twice is allowed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def lock_log_directory(log_dir: str) -> FileLock:
    """Take ``.cursus.lock`` of a store, before anything else in it is opened.

    An empty ``log_dir`` is a ``ValueError``, before anything is created.
    """
    if not log_dir:
        raise ValueError("log_dir is empty")
    return FileLock(os.path.join(log_dir, layout.LOG_DIR_LOCK))


def lock_partition(log_dir: str, topic: str, partition: int) -> FileLock:
    """Take the lock of one partition."""
    name = layout.topic_file(topic, layout.partition_lock(partition))
    return FileLock(os.path.join(log_dir, name))
