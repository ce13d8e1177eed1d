-- title: Offsets without registration
-- question: Which groups have offsets in the log, but no registration?
-- how to read: A start does not know these groups. If one registers again below highest_epoch
--   + 1, the old snapshots become live again, or contradict new ones and stop a broker.
select
    grp as group_name,
    topic,
    snapshots,
    highest_epoch
from check_q11
order by grp, topic
