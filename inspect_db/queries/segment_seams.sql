-- title: Gaps and overlaps between segments
-- question: Where do segments of a partition not join?
-- how to read: gap: missing_offsets offsets between two segments are gone. overlap: offsets
--   stand in both. unknown: the segment before could not be read.
-- parameter topic: Topic; all topics without it.
select
    s.topic,
    s.partition,
    s.base_offset,
    s.previous_last,
    s.first_offset,
    s.seam,
    s.missing_offsets,
    f.path
from segments as s
join files as f on f.file_id = s.file_id
where s.seam in ('gap', 'overlap', 'unknown')
  and (:topic is null or s.topic = :topic)
order by s.topic, s.partition, s.base_offset
