-- title: Commits below the log start
-- question: Which groups would go on reading at offsets that are not there any more?
-- how to read: Retention was faster than the group: outside_by records were never read.
select
    group_name,
    topic,
    partition,
    committed_offset,
    log_start,
    outside_by
from consumer_lag
where place = 'below_start'
order by outside_by desc, group_name, topic, partition
