-- title: Keys with most versions
-- question: Which keys of a topic have the most records, that compaction could save?
-- how to read: Most versions first. Records behind damage and in deleted segments do not count.
-- parameter topic: Topic; all topics without it.
-- parameter limit: How many lines. (default 20) [integer]
-- scans: true
select
    topic,
    partition,
    key,
    count(*) as versions,
    min(record_offset) as first_offset,
    max(record_offset) as last_offset
from records
where key is not null
  and reachable = 1
  and deleted = 0
  and (:topic is null or topic = :topic)
group by topic, partition, key
order by versions desc, topic, partition, key
limit :limit
