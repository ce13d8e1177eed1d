"""The benchmarks run, with little data, so that they cannot rot; no time is judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import yardstick
from bench.__main__ import all_benchmarks, main
from bench.harness import Goal
from cursus.formats.record import decode

RECORDS = Path(__file__).resolve().parent.parent / "fixtures" / "golden" / "segments" / "records"


def test_every_benchmark_runs_and_results_can_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--quick", "--json", "--in", str(tmp_path)])
    text = capsys.readouterr().out
    result = json.loads(text)
    assert {*result["benchmarks"]} == {benchmark.name for benchmark in all_benchmarks()}
    for held in result["benchmarks"].values():
        assert all(isinstance(value, (int, float)) for value in held["figures"].values())
        assert {*held["goals"]} <= {*held["figures"]}
    assert result["machine"]["cores"] >= 1
    (tmp_path / "a.json").write_text(text)
    changed = json.loads(text)
    first = changed["benchmarks"]["scan one segment"]["figures"]
    first["yardstick_records_per_s"] *= 2
    (tmp_path / "b.json").write_text(json.dumps(changed))
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [
        line
        for line in lines
        if line.startswith("scan one segment ") and " yardstick_records_per_s " in line
    ]
    assert line.endswith("2.00")
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".json"]


def test_a_table_is_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "scan small", "--in", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "scan_to_reading" in out
    assert "cores" in out
    assert "one segment" not in out


def test_the_yardstick_decodes_every_field() -> None:
    files = sorted(RECORDS.glob("*.bin"))
    assert len(files) > 5
    for path in files:
        data = path.read_bytes()
        record = decode(data)
        values = [getattr(record, name) for name in type(record).__slots__]
        assert list(yardstick.decode(data, 0)) == values


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        (Goal("x", at_least=5), 5, True),
        (Goal("x", at_least=5), 4.99, False),
        (Goal("x", at_most=3), 3.01, False),
    ],
)
def test_goals(goal: Goal, value: float, met: bool) -> None:
    assert goal.met(value) is met
