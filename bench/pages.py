"""How fast the pages of a large index answer, and at ten million records under 300 ms.

The index is that of a small captured log directory with generated rows on top:
records, segments, groups with their revisions, findings. A build of ten million
records would take longer and give pages nothing else to read. Times are of whole
answers, from the request to the last byte, by Datasette's own client in one process.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.harness import Benchmark, Figures, Goal, Scale
from inspect_db import fixtures, load
from inspect_db.cli_serve import instance

ROOT: Final = Path(__file__).resolve().parent.parent
FIXTURE: Final = "shop-killed"
GOAL_MS: Final = 300.0
RECORDS: Final = 10_000_000
QUICK_RECORDS: Final = 200_000
SEGMENT_RECORDS: Final = 10_000
PARTITIONS: Final = 16
GROUPS: Final = 5_000
REVISIONS: Final = 40
FINDINGS: Final = 5_000
#: Revisions of the group with the longest life. All of these go with the records.
LONG_LIFE: Final = 20_000

_GENERATED: Final = """
insert into topics (topic, declared, directory, state, storage_partitions, partitions)
values ('big', 1, 1, 'live', :partitions, :partitions);

insert into files (file_id, path, kind, class, type, topic, partition, base_offset, size,
                   mtime_ns, ctime_ns, mode, device, inode, changed)
with recursive n (n) as (select 0 union all select n + 1 from n where n + 1 < :segments)
select 1000000 + n,
       printf('big/partition_%d_segment_%020d.log', n % :partitions, n / :partitions * :each),
       'segment_log', 'authoritative', 'file', 'big', n % :partitions,
       n / :partitions * :each, :each * 200, 0, 0, 420, 1, 1000000 + n, 0
from n;

insert into segments
select file_id, topic, partition, base_offset, 0, 0, 0, size, 'clean', size, base_offset,
       base_offset + :each - 1, :each, base_offset + :each,
       case when base_offset > 0 then base_offset - 1 end,
       case when base_offset > 0 then 'contiguous' else 'first' end, 0, 0
from files where file_id >= 1000000;

insert into segment_sums
select file_id, :each, size, size / 2, 200, 0, 0, 0, 0 from files where file_id >= 1000000;

insert into partitions
select topic, partition, 0, 0, 0, sum(record_count), sum(record_count), sum(record_count),
       sum(record_count), sum(record_count), count(*), 0, 0, null, 1, 0
from segments where topic = 'big' group by partition;

insert into record_rows (file_id, position, length, shape_id, record_offset, key, payload_bytes)
with recursive n (n) as (select 0 union all select n + 1 from n where n + 1 < :each)
select f.file_id, n * 200, 200, 1, f.base_offset + n, printf('key-%07d', n), 100
from files as f cross join n where f.file_id >= 1000000;

insert into replayed_groups
with recursive n (n) as (select 0 union all select n + 1 from n where n + 1 < :groups)
select printf('group-%06d', n), 'live', 'big', :partitions, 1, 2 from n;

insert into replayed_revisions select group_name, 'big', 1 from replayed_groups where topic = 'big';

insert into replayed_offsets
with recursive n (n) as (select 0 union all select n + 1 from n where n + 1 < :partitions)
select group_name, 'big', n, 100, 0, 1000, 900, 'in_log', null
from replayed_groups cross join n where topic = 'big';

insert into lifecycle_records
select 999999, 8000000 + rowid_of, 100, 0, rowid_of, 'live', 'lifecycle_current', null,
       'group_registration', group_name, 'big', :partitions, 1, '2026-01-01T00:00:00Z', x'00'
from (select group_name, row_number() over () as rowid_of
      from replayed_groups where topic = 'big');

insert into offset_snapshots
with recursive n (n) as (select 1 union all select n + 1 from n where n < :revisions)
select 999998, (row_number() over ()) * 100, 100, 0, n, 'live', 'snapshot_superseded', null,
       group_name, 'big', 1, n, '2026-01-01T00:00:00Z', x'00', nullif(n - 1, 0), 1
from replayed_groups cross join n where topic = 'big';

insert into offset_snapshots
with recursive n (n) as (select 1000 union all select n + 1 from n where n < 1000 + :long)
select 999997, n * 100, 100, 0, n, 'live', 'snapshot_superseded', null,
       'group-000000', 'big', 1, n, '2026-01-01T00:00:00Z', x'00', n - 1, 1
from n;

insert into offset_snapshot_items
with recursive n (n) as (select 0 union all select n + 1 from n where n + 1 < 4)
select file_id, position, n, 100, 99, 1
from offset_snapshots cross join n where file_id in (999997, 999998);

insert into findings (code, severity, effect, step, path, file_id, position, length, message,
                      action, detail)
with recursive n (n) as (select 0 union all select n + 1 from n where n + 1 < :findings)
select c.code, 'warning', 'ignores', 1 + n.n % 5,
       'big', 1000000 + n.n % :segments, n.n, 1, 'a finding that was made up', 'nothing', '{}'
from n
join (select code, row_number() over () - 1 as k from finding_codes limit 20) as c
    on c.k = n.n % 20;
"""


def make(folder: Path, records: int) -> tuple[Path, Path]:
    """Index and evidence; the sums of the small part stay as they are."""
    fixture = fixtures.load(ROOT / "fixtures" / FIXTURE)
    log_dir = fixtures.materialise(fixture, folder)
    index = folder / "index.db"
    load.build(str(log_dir), str(index), load.BuildOptions(fixture.as_of))
    connection = sqlite3.connect(index)
    connection.execute("pragma synchronous = off")
    connection.execute("pragma journal_mode = memory")
    names = {
        "segments": records // SEGMENT_RECORDS,
        "each": SEGMENT_RECORDS,
        "partitions": PARTITIONS,
        "groups": records * GROUPS // RECORDS,
        "revisions": REVISIONS,
        "long": records * LONG_LIFE // RECORDS,
        "findings": records * FINDINGS // RECORDS,
    }
    for statement in _GENERATED.split(";\n"):
        if statement.strip():
            used = {name: value for name, value in names.items() if f":{name}" in statement}
            connection.execute(statement, used)
    connection.execute("pragma journal_mode = delete")
    connection.commit()
    connection.close()
    return index, log_dir


#: What is measured, in order; those of nobody are told to be absent.
NAMES: Final = (
    *("verdict", "overview_json", "verdict_json", "inventory_json", "group", "group_long_life"),
    *("group_of_nobody", "topic", "partition", "record_of_evidence", "record_in_the_middle"),
    *("place", "datasette_records", "datasette_segment", "datasette_files"),
)
ABSENT: Final = {"group_of_nobody", "place"}


def pages(index: Path) -> Iterator[tuple[str, str]]:
    """Name and address of each."""
    home = "/-/cursus/index"
    connection = sqlite3.connect(index)
    (small,) = connection.execute(
        "select file_id from segments where file_id < 1000000 and record_count > 10"
    ).fetchone()
    (middle,) = connection.execute(
        "select file_id from segments where topic = 'big' and partition = 3 "
        "order by base_offset desc limit 1"
    ).fetchone()
    connection.close()
    addresses = (
        *(f"{home}/", f"{home}/overview.json", f"{home}/verdict.json", f"{home}/inventory.json"),
        *(f"{home}/group/group-000040", f"{home}/group/group-000000", f"{home}/group/nobody"),
        *(f"{home}/topic/big", f"{home}/topic/big/3", f"{home}/record/{small}/0"),
        *(f"{home}/record/{middle}/1000000", f"{home}/at/nowhere"),
        *("/index/records", f"/index/records?file_id={middle}", "/index/files"),
    )
    yield from zip(NAMES, addresses, strict=True)


def measure(scale: Scale) -> Figures:
    """Median milliseconds of each answer."""
    records = QUICK_RECORDS if scale.quick else RECORDS
    with scale.place() as folder:
        index, log_dir = make(folder, records)
        figures = {"records": float(records), "index_mib": index.stat().st_size / (1 << 20)}
        return figures | asyncio.run(_measure(index, log_dir, 3 * scale.runs))


async def _measure(index: Path, log_dir: Path, runs: int) -> Figures:
    datasette = instance(str(index), str(log_dir))
    await datasette.invoke_startup()
    found = {}
    for name, path in pages(index):
        spent = []
        for _ in range(runs):
            begin = time.perf_counter()
            response = await datasette.client.get(path)
            spent.append((time.perf_counter() - begin) * 1000)
            assert response.status_code == (404 if name in ABSENT else 200), (path, response.text)
        found[f"{name}_ms"] = statistics.median(spent)
    return found


def benchmarks() -> list[Benchmark]:
    """For ``python -m bench``. Datasette's own pages are looked at, and not promised."""
    own = (name for name in NAMES if not name.startswith("datasette"))
    goals = [Goal(f"{name}_ms", at_most=GOAL_MS) for name in own]
    return [Benchmark("pages", measure, goals)]
