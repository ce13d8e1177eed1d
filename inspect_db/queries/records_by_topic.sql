-- title: Records by topic
-- question: How many records and bytes does each topic have?
-- how to read: Sums over all segments, deleted ones and records behind damage included.
select
    s.topic,
    count(*) as segments,
    coalesce(sum(m.records), 0) as records,
    coalesce(sum(m.bytes), 0) as bytes,
    coalesce(sum(m.payload_bytes), 0) as payload_bytes,
    coalesce(sum(m.transactional), 0) as transactional,
    coalesce(sum(m.control), 0) as control
from segments as s
left join segment_sums as m on m.file_id = s.file_id
group by s.topic
order by s.topic
