"""Where storage ends: the last offset, a disk that takes half a frame, a directory just made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cursus import layout
from cursus.broker.machine import this_machine
from cursus.broker.runtime import Runtime, Settings
from cursus.evidence.walk import LogDirectory
from cursus.formats import topic_manifest
from cursus.formats.record import Record
from cursus.replay.startup import plan
from cursus.storage.errors import WriteRefusedError
from cursus.storage.log_settings import LogSettings

SETTINGS = Settings(log=LogSettings(log_segment_bytes=200, log_index_size_bytes=4096))
LAST = 2**64 - 1


def topic_at(log_dir: Path, base: int) -> None:
    """A topic ``t`` whose only log is empty and begins at ``base``."""
    definition, _ = topic_manifest.patch(None, "t", {"partitions": 1})
    (log_dir / layout.MANIFEST).write_bytes(topic_manifest.encode([definition]))
    (log_dir / "t").mkdir()
    (log_dir / "t" / layout.segment_log(0, base)).write_bytes(b"")


@pytest.mark.parametrize("base", [2**63 - 2, 2**63, LAST - 3, LAST - 1, LAST])
def test_offsets_end_with_a_refusal_and_never_wrap(tmp_path: Path, base: int) -> None:
    """segments.md section 6: an append that fails uses no offset; a base is an offset too."""
    topic_at(tmp_path, base)
    left = min(LAST - base, 6)
    with Runtime.start(str(tmp_path), SETTINGS) as runtime:
        assert runtime.storage is not None
        log = runtime.storage.partition("t", 0)
        for number in range(left):
            payload = Record(payload=bytes(90))
            if number % 3 == 0:
                assert log.append(payload) == base + number
            elif number % 3 == 1:
                assert log.append_batch([payload]) == range(base + number, base + number + 1)
            else:
                assert log.enqueue([payload]) == range(base + number, base + number + 1)
        if base + left == LAST:
            for write in (log.append_batch, log.enqueue, log.write):
                with pytest.raises(WriteRefusedError) as refused:
                    write([Record(payload=b"x")])
                assert refused.value.code == "offset_space_exhausted"
            with pytest.raises(WriteRefusedError):
                log.append(Record(payload=b"x"))
        log.flush()
        log.roll()
        assert log.writable
        assert log.hwm == log.leo == base + left
    with LogDirectory.at(str(tmp_path)) as evidence:
        assert plan(evidence).verdict == "starts_clean"
    with Runtime.start(str(tmp_path), SETTINGS) as runtime:
        assert runtime.storage is not None
        log = runtime.storage.partition("t", 0)
        found = [record.offset for record in log.records()]
        assert found == list(range(base, base + left))
        assert log.leo == base + left


HALF_A_FRAME = """
import os, resource, sys
from cursus.broker.runtime import Runtime
from cursus.storage.errors import StoreError
runtime = Runtime.start(sys.argv[1])
storage = runtime.storage
storage.register_group("g", "t", 1)
storage.commit_offsets("g", "t", {0: 1})
largest = max(
    log.active_bytes for key, log in storage.partitions.items() if key[0].startswith("__")
)
resource.setrlimit(resource.RLIMIT_FSIZE, (largest + int(sys.argv[2]),) * 2)
try:
    for offset in range(2, 9):
        storage.commit_offsets("g", "t", {0: offset})
        print(offset, flush=True)
except StoreError as error:
    print(error.code, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("room", [1, 3, 4, 40, 200])
def test_half_a_commit_on_a_full_disk_does_not_refuse_the_next_start(
    tmp_path: Path, room: int
) -> None:
    """The process was there to cut off what it could not finish (README.md decision 13)."""
    with Runtime.start(str(tmp_path)) as runtime:
        assert runtime.storage is not None
        runtime.storage.create_topic("t", {"partitions": 1})
    command = [sys.executable, "-c", HALF_A_FRAME, str(tmp_path), str(room)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert told[-1] == "append_failed", told
    acknowledged = int(told[-2]) if len(told) > 1 else 1
    with Runtime.start(str(tmp_path)) as runtime:
        assert runtime.storage is not None, runtime.diagnostics
        assert runtime.storage.groups["g"].offsets == {"t": {0: acknowledged}}


def test_the_name_of_a_new_log_directory_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    this_machine().make_log_dir(str(tmp_path / "a" / "b"))
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    this_machine().make_log_dir(str(tmp_path / "a" / "b"))
    assert len(synced) == 2
