-- title: Committed offsets after a start
-- question: Where would each group go on reading?
-- how to read: One line a group, topic and partition; the offset is the next one to read.
-- parameter group: Name of the group; all groups without it.
select
    group_name,
    topic,
    partition,
    committed_offset,
    revision,
    epoch,
    recovered
from committed_offsets
where :group is null
   or group_name = :group
order by group_name, topic, partition
