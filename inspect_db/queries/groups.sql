-- title: Groups after a start
-- question: Which groups would a broker know, with which topic and epoch?
-- how to read: recovered 0 means that a refusal stops a broker before it knows any group.
select
    group_name,
    state,
    topic,
    partition_count,
    epoch,
    committed_partitions,
    floor,
    recovered
from consumer_groups
order by group_name
