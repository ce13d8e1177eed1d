-- title: Fenced snapshots and why
-- question: Which snapshots does the replay set aside, and for which reason?
-- how to read: One line for each snapshot that does not count. Those without a registration
--   are the alarming ones; those of an older epoch are the ordinary rest of a deleted life.
-- parameter group: Name of the group; all groups without it.
select
    group_name,
    topic,
    epoch,
    revision,
    reason,
    current_epoch,
    path,
    position
from fenced_snapshots
where :group is null
   or group_name = :group
order by group_name, topic, epoch, revision, path, position
