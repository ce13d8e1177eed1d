-- title: Producers with sequence gaps or duplicates
-- question: Which producers skipped or repeated sequences?
-- how to read: Compaction and transactions leave gaps of their own; duplicates never should be.
-- parameter topic: Topic; all topics without it.
select
    topic,
    partition,
    producer,
    epoch,
    first_sequence,
    last_sequence,
    records,
    gaps,
    duplicates,
    first_offset,
    last_offset
from producer_runs
where (gaps > 0 or duplicates > 0)
  and (:topic is null or topic = :topic)
order by duplicates desc, gaps desc, topic, partition, producer, epoch
