-- title: History of committed offsets
-- question: How did the committed offset of a group move, revision by revision?
-- how to read: One line for each revision and partition that is still in the log, oldest
--   first. A revision_step above 1 means that revisions between are gone, mostly by compaction.
-- parameter group: Name of the group. (required)
-- parameter topic: Topic; all topics without it.
-- parameter partition: Partition; all partitions without it. [integer]
select
    topic,
    item_partition as partition,
    epoch,
    revision,
    item_offset as committed_offset,
    change,
    revision_step,
    timestamp,
    disposition,
    path,
    position
from offset_revisions
where group_name = :group
  and (:topic is null or topic = :topic)
  and (:partition is null or item_partition = :partition)
order by topic, item_partition, epoch, revision, path, position
