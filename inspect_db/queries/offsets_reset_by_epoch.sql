-- title: Offsets that began again with a new life
-- question: Which groups began again at lower offsets after they were deleted or lost?
-- how to read: One line for each partition whose first known offset of a life is below the
--   last one of the life before. The records between are delivered again.
-- parameter group: Name of the group; all groups without it.
with edges as (
    select
        group_name,
        topic,
        item_partition,
        epoch,
        min(revision) as first_revision,
        max(revision) as last_revision
    from offset_revisions
    where state = 'live'
    group by group_name, topic, item_partition, epoch
),
ends as (
    select
        e.group_name,
        e.topic,
        e.item_partition,
        e.epoch,
        (
            select r.item_offset
            from offset_revisions as r
            where r.group_name = e.group_name
              and r.topic = e.topic
              and r.item_partition = e.item_partition
              and r.epoch = e.epoch
              and r.revision = e.first_revision
              and r.state = 'live'
            limit 1
        ) as first_known,
        (
            select r.item_offset
            from offset_revisions as r
            where r.group_name = e.group_name
              and r.topic = e.topic
              and r.item_partition = e.item_partition
              and r.epoch = e.epoch
              and r.revision = e.last_revision
              and r.state = 'live'
            limit 1
        ) as last_known
    from edges as e
),
lives as (
    select
        *,
        lag(epoch) over life as epoch_before,
        lag(last_known) over life as offset_before
    from ends
    window life as (partition by group_name, topic, item_partition order by epoch)
)
select
    group_name,
    topic,
    item_partition as partition,
    epoch_before,
    offset_before,
    epoch,
    first_known as offset_after
from lives
where first_known < offset_before
  and (:group is null or group_name = :group)
order by group_name, topic, item_partition, epoch
