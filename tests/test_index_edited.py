"""A log that is edited in place while it is read: a later update says what a full build says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import test_index_update as updates
from test_index_update import Bench

from cursus.evidence.window import FrameWindow
from cursus.formats import record as codec
from inspect_db import load
from inspect_db.load import fill


def edit(log: Path) -> None:
    """The last record of a producer gets another epoch; no size changes."""
    position, record = [
        item for item in updates.frames(log) if item[1].producer_id and item[1].sequence
    ][-1]
    with log.open("r+b") as file:
        file.seek(position)
        file.write(codec.encode_frame(dataclasses.replace(record, epoch=record.epoch + 3)))


def test_edited_between_the_comparison_of_its_beginning_and_its_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    log = max(bench.logs("orders"), key=lambda path: path.name)
    end = log.stat().st_size
    updates.append(log)
    real = fill.from_index

    def edited(*given: object) -> object:
        start = real(*given)  # type: ignore[arg-type]
        data = log.read_bytes()
        log.write_bytes(data[:end])
        edit(log)
        with log.open("ab") as file:
            file.write(data[end:])
        return start

    with monkeypatch.context() as patch:
        patch.setattr(fill, "from_index", edited)
        assert bench.update().changed
    bench.update()
    bench.agrees()


def test_edited_between_its_scan_and_its_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments below 32 KiB are read twice: by the plain scan, then for their digests."""
    bench = Bench(tmp_path)
    log = max(bench.logs("orders"), key=lambda path: path.name)
    real, done = FrameWindow.drain, []

    def drain(self: FrameWindow, on_hole: object) -> None:
        if self.size == log.stat().st_size and not done:
            done.append(edit(log))
        real(self, on_hole)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(FrameWindow, "drain", drain)
        options = load.BuildOptions(updates.AS_OF)
        assert load.build(str(bench.log_dir), str(bench.index), options).changed
    assert done
    bench.update()
    bench.agrees()
