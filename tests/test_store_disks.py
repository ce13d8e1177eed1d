"""Topics, journal and groups on a file system that is full, or has become read-only."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store_help import NOW, files, plan_of, tree_of
from test_consumer_log import Storage

from cursus import layout
from cursus.formats import transaction_journal as tj
from cursus.formats.transaction_journal import Transaction
from cursus.storage.errors import StoreError
from cursus.storage.journal_store import JournalStore
from cursus.storage.manifest_store import ManifestStore

_READ_ONLY, _REMOUNT = 1, 32


class Disk:
    """A file system of 256 KiB."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.libc = ctypes.CDLL(None, use_errno=True)

    def mount(self, flags: int = 0) -> bool:
        at = os.fsencode(self.place)
        return bool(self.libc.mount(b"tmpfs", at, b"tmpfs", flags, b"size=256k") == 0)

    def read_only(self) -> None:
        assert self.mount(_REMOUNT | _READ_ONLY)

    def writable(self) -> None:
        assert self.mount(_REMOUNT)

    def fill(self, left: int = 0) -> Path:
        """Take all space but ``left`` bytes."""
        filler = self.place / "filler"
        space = os.statvfs(self.place)
        filler.write_bytes(bytes(max(space.f_bavail * space.f_frsize - left, 0)))
        return filler


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    found = Disk(tmp_path / "small")
    found.place.mkdir()
    if not found.mount():
        pytest.skip("mounting is not permitted here; injected errors stand in")
    yield found
    found.libc.umount2(os.fsencode(found.place), 2)


def until_refused(ask: Callable[[int], object], most: int = 5000) -> tuple[int, StoreError]:
    """How often it worked, and how it ended."""
    for number in range(most):
        try:
            ask(number)
        except StoreError as error:
            return number, error
    raise AssertionError("never refused")


def journal_of(place: Path) -> JournalStore:
    return JournalStore.open(files(), str(place), plan_of(place).journal, clock=lambda: NOW)


def state(number: int, payload: str = "x" * 3000) -> Transaction:
    message = {"Topic": "t", "Partition": 0, "Message": tj.message(Payload=payload)}
    return tj.transaction(
        id=f"tx-{number}",
        producer="p",
        revision=1,
        state="aborted",
        messages=[message],
        created_at=NOW,
        updated_at=NOW,
    )


def test_a_journal_on_a_full_disk(disk: Disk) -> None:
    store = journal_of(disk.place)
    filler = disk.fill(left=60_000)
    acknowledged, error = until_refused(lambda number: store.append(state(number)))
    assert error.code == "journal_write_unavailable"
    assert acknowledged > 10
    assert set(store.transactions) == {f"tx-{number}" for number in range(acknowledged)}
    found = plan_of(disk.place)
    assert found.first_refusal is None
    assert dict(store.transactions).items() <= found.journal.transactions.items()
    with pytest.raises(StoreError):
        store.compact()
    assert not list(disk.place.glob(f"{layout.JOURNAL}.compact-*"))
    filler.unlink()
    store.append(state(acknowledged))
    store.compact()
    assert plan_of(disk.place).verdict == "starts_clean"
    assert plan_of(disk.place).journal.transactions == dict(store.transactions)
    store.close()


def test_topics_on_a_full_disk(disk: Disk) -> None:
    store = ManifestStore(files(), str(disk.place))
    store.ensure_internal_topic()
    filler = disk.fill(left=40_000)
    created, error = until_refused(lambda number: store.create(f"t{number}", {"partitions": 1}))
    assert error.code in {"manifest_write_failed", "topic_storage_write_failed"}
    assert created > 3
    assert set(store.definitions) == {"__consumer_offsets", *(f"t{n}" for n in range(created))}
    assert not (disk.place / layout.MANIFEST_TEMP).exists()
    assert not (disk.place / f"t{created}").exists()
    assert plan_of(disk.place).verdict == "starts_clean"
    before = tree_of(disk.place)
    with pytest.raises(StoreError):
        store.truncate("t0", 1)
    assert tree_of(disk.place) == before, "refused, and nothing of it stays"
    filler.unlink()
    store.truncate("t0", 1)
    store.create(f"t{created}", {"partitions": 1})
    assert plan_of(disk.place).verdict == "starts_clean"


def test_commits_on_a_full_disk(disk: Disk) -> None:
    storage = Storage(disk.place)
    storage.groups.register("t", "g", 1)
    filler = disk.fill(left=20_000)
    offsets, error = until_refused(lambda number: storage.groups.commit("g", "t", 0, number + 1))
    assert error.code == "append_failed"
    assert offsets > 20
    assert storage.groups.committed("g", "t", 0) == offsets
    filler.unlink()
    with pytest.raises(StoreError):
        storage.groups.commit("g", "t", 0, offsets + 5)
    storage.close()
    # Half a frame would refuse every start (decision 13), so what is left of it is cut off.
    found = plan_of(disk.place)
    assert found.first_refusal is None
    assert found.consumers.groups["g"].offsets["t"][0] == offsets
    storage = Storage(disk.place)
    assert storage.groups.commit("g", "t", 0, offsets + 5)
    storage.close()


def test_a_file_system_that_became_read_only(disk: Disk) -> None:
    manifest = ManifestStore(files(), str(disk.place))
    manifest.ensure_internal_topic()
    manifest.create("t", {"partitions": 1})
    journal = journal_of(disk.place)
    journal.append(state(0))
    journal.close()
    before = tree_of(disk.place)
    disk.read_only()
    requests: list[Callable[[], Any]] = [
        lambda: manifest.create("more", {}),
        lambda: manifest.create("t", {"partitions": 2}),
        lambda: manifest.create("t", {"retention_hours": 1}),
        lambda: manifest.delete("t"),
        lambda: manifest.truncate("t", 1),
        lambda: journal.append(state(1)),
        journal.compact,
        lambda: journal.forget_topic("t"),
    ]
    for request in requests:
        with pytest.raises(StoreError):
            request()
    assert tree_of(disk.place) == before
    assert set(manifest.definitions) == {"__consumer_offsets", "t"}
    assert set(journal.transactions) == {"tx-0"}
    disk.writable()
    assert manifest.truncate("t", 1).lifecycle_epoch == 2
    journal.append(state(1))
    journal.close()
    assert plan_of(disk.place).verdict == "starts_clean"
