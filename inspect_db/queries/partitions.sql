-- title: Partitions
-- question: Where does each log begin and end, and where is its high watermark?
-- how to read: hwm_checkpoint is what the file says, hwm_effective what counts after a start.
-- parameter topic: Topic; all topics without it.
select
    topic,
    partition,
    log_start,
    first_offset,
    log_end,
    next_offset,
    hwm_checkpoint,
    hwm_effective,
    record_count,
    segment_count
from partitions
where :topic is null
   or topic = :topic
order by topic, partition
