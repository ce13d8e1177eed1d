-- title: Keys with most versions
-- question: Which keys of a topic have the most records, that compaction could save?
-- how to read: Most versions first; the counts are exact. Records behind damage and in deleted segments do not count. Above two hundred thousand records the keys are found in a sample of that size, so of keys with nearly equal counts some may be missing.
-- parameter topic: Topic; all topics without it.
-- parameter limit: How many lines. (default 20) [integer]
-- scans: true
with
    sampling as materialized (
        select max(1, coalesce(sum(records), 0) / 200000) as every
        from segment_sums
    ),
    candidates as materialized (
        select
            r.key,
            count(*) as versions
        from segments as g
        join record_rows as r on r.file_id = g.file_id
        cross join sampling as s
        where g.deleted = 0
          and (:topic is null or g.topic = :topic)
          and r.key is not null
          and (r.position * 2654435761 >> 16) % s.every = 0
        group by g.topic, g.partition, r.key
        order by versions desc
        limit 20 * :limit
    )
select
    topic,
    partition,
    key,
    count(*) as versions,
    min(record_offset) as first_offset,
    max(record_offset) as last_offset
from records
where key in (select key from candidates)
  and reachable = 1
  and deleted = 0
  and (:topic is null or topic = :topic)
group by topic, partition, key
order by versions desc, topic, partition, key
limit :limit
