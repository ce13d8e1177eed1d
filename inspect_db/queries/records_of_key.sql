-- title: Records of a key
-- question: Which records does a key have?
-- how to read: One line a record, in the order of the log; payload(file_id, position) shows its payload.
-- parameter key: The key. (required)
-- parameter topic: Topic; all topics without it.
-- scans: true
select
    topic,
    partition,
    record_offset,
    producer,
    event_type,
    aggregate_version,
    payload_bytes,
    reachable,
    path,
    file_id,
    position
from records
where key = :key
  and (:topic is null or topic = :topic)
order by topic, partition, record_offset
