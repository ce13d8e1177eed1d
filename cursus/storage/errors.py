"""What the stores raise: one family, each error with its code and its address.

The code stands in the catalogue of findings, so what an operator is told about
it (``action``) is the same in a log line, in an answer and on the page.

Source: design principle 3; segments.md sections 8, 11, 15, 16.
"""

from __future__ import annotations

from cursus.findings import CATALOGUE


class StoreError(RuntimeError):
    """A store refuses or fails.

    ``code``: from the catalogue. ``path``, ``position``: the file and the byte,
    where there is one. ``detail``: facts for programs under fixed names.
    """

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        path: str = "",
        position: int | None = None,
        **detail: object,
    ) -> None:
        entry = CATALOGUE[code]
        super().__init__(message or entry.meaning)
        self.code = code
        self.message = message or entry.meaning
        self.action = entry.action
        self.path = path
        self.position = position
        self.detail = detail


class WriteRefusedError(StoreError):
    """Nothing was written and no offset was used; the store goes on."""


class WriteFailedError(StoreError):
    """A write, flush or fsync failed, now or earlier: unwritable until it is opened again.

    Whether what was about to be written is on the disk is not known.
    """


class UnwritableError(WriteFailedError):
    """An earlier operation has failed: nothing of this one was written, and that is certain."""


class ReadError(StoreError):
    """A read that gives nothing: the offset is out of range, or the file is damaged."""


class RefusedError(StoreError):
    """A store that does not open; nothing was changed."""


def reason(error: OSError) -> str:
    """The system's words for an error, without its number and path."""
    return error.strerror or str(error)
