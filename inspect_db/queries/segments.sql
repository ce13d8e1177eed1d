-- title: Segments
-- question: Which segments does a topic have, and which offsets do they hold?
-- how to read: ends says how the scan ended: clean, torn, in_progress, damaged or unreadable.
-- parameter topic: Topic; all topics without it.
-- parameter partition: Partition; all partitions without it. [integer]
select
    s.topic,
    s.partition,
    s.base_offset,
    s.active,
    s.deleted,
    s.compacted,
    s.first_offset,
    s.last_offset,
    s.record_count,
    s.size,
    s.ends,
    s.end_position
from segments as s
where (:topic is null or s.topic = :topic)
  and (:partition is null or s.partition = :partition)
order by s.topic, s.partition, s.deleted, s.base_offset
