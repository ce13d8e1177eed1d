-- title: Who moved an offset back
-- question: Which snapshot lowered a committed offset, in whatever life of a group?
-- how to read: One line for each offset that is lower than in the revision before. In the
--   life that counts a broker refuses to start (rejected); in a dead life nothing happens.
-- parameter group: Name of the group; all groups without it.
select
    group_name,
    topic,
    item_partition as partition,
    epoch,
    previous_revision,
    previous_offset,
    revision,
    item_offset as committed_offset,
    change,
    timestamp,
    disposition,
    path,
    position
from offset_revisions
where item_offset < previous_offset
  and (:group is null or group_name = :group)
order by group_name, topic, epoch, revision, item_partition
