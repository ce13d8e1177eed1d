-- title: Commits beyond the log end
-- question: Which groups committed offsets that the log does not have?
-- how to read: The log lost its end, or the offsets are younger than the log: a restore of
--   different moments. New records below the committed offset are never delivered.
select
    group_name,
    topic,
    partition,
    committed_offset,
    log_end,
    outside_by
from consumer_lag
where place = 'beyond_end'
order by outside_by desc, group_name, topic, partition
