-- title: Aggregate snapshots against the log
-- question: Which saved states are newer than the log, or belong to no aggregate of it?
-- how to read: A saved state above log_version was made from events that are gone.
select
    s.topic,
    s.partition,
    s.key,
    s.version as snapshot_version,
    a.version as log_version,
    f.path,
    s.position
from aggregate_snapshots as s
join files as f on f.file_id = s.file_id
left join aggregates as a
    on a.topic = s.topic
   and a.partition = s.partition
   and a.key = s.key
where s.current = 1
  and (a.version is null or s.version > a.version)
order by s.topic, s.partition, s.key
