-- title: Lives of a group
-- question: Which lives did a group have, how did each begin and end, and which one counts?
-- how to read: One line a registration or tombstone, oldest epoch first. The line with
--   lifecycle_current decides; a tombstone there means that the group is deleted.
-- parameter group: Name of the group; all groups without it.
select
    group_name,
    epoch,
    type,
    topic,
    partition_count,
    timestamp,
    disposition,
    snapshots,
    path,
    position
from lifecycle_epochs
where :group is null
   or group_name = :group
order by group_name, epoch, path, position
