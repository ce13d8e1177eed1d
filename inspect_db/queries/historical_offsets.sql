-- title: Offsets of older builds
-- question: Where did groups stand in unversioned records of older builds?
-- how to read: The highest offset of each partition; evidence only, no broker of today uses it.
select
    group_name,
    topic,
    partition,
    item_offset
from historical_offsets
order by group_name, topic, partition
