-- title: Lag
-- question: How many records has each group still to read?
-- how to read: Largest lag first. It counts up to the end of the log; compacted records count too.
-- parameter group: Name of the group; all groups without it.
select
    group_name,
    topic,
    partition,
    committed_offset,
    log_end,
    lag
from consumer_lag
where place <> 'no_log'
  and (:group is null or group_name = :group)
order by lag desc, group_name, topic, partition
