-- title: Largest records
-- question: Which records are the largest?
-- how to read: bytes is the whole frame; records above 64 MiB cannot be written.
-- parameter limit: How many lines. (default 20) [integer]
select
    l.rank,
    l.topic,
    l.partition,
    l.record_offset,
    l.length as bytes,
    l.payload_bytes,
    f.path,
    l.position
from largest_records as l
join files as f on f.file_id = l.file_id
order by l.rank
limit :limit
