-- Twelve checks that reach the replay's conclusions on their own (consumer-metadata.md 6.6).
--
-- They use accepted records only (cm_record, cm_item), never a disposition. A
-- test holds both against each other on every fixture and vector. Patterns in the
-- topic of a group are beyond SQL: such groups count as matching.

-- view cm_record: Accepted records of __consumer_offsets.
--   type: group_registration, group_tombstone or offset_snapshot.
--   grp: Name of the group.
--   topic: Topic of the group or of the snapshot.
--   partition_count: Partitions with which the group was registered; 0 in other records.
--   revision: Revision of a snapshot; 0 in other records.
--   canon: Canonical encoding with the zero time.
create view cm_record as
select
    log_partition,
    log_offset,
    type,
    group_name as grp,
    topic,
    partition_count,
    epoch,
    0 as revision,
    canonical as canon,
    file_id,
    position
from lifecycle_records
where state = 'live'
union all
select
    log_partition,
    log_offset,
    'offset_snapshot',
    group_name,
    topic,
    0,
    epoch,
    revision,
    canonical,
    file_id,
    position
from offset_snapshots
where state = 'live';

-- view cm_item: Offsets of accepted snapshots.
create view cm_item as
select
    s.log_partition,
    s.log_offset,
    i.item_partition,
    i.item_offset,
    s.file_id,
    s.position
from offset_snapshots as s
join offset_snapshot_items as i on i.file_id = s.file_id and i.position = s.position
where s.state = 'live';

-- view check_q1: Lifecycle records that differ from an earlier one of the same epoch.
--   grp: Name of the group.
--   decided: conflict: the broker refuses. stale: a higher epoch was met before, so it is dropped.
create view check_q1 as
select
    grp,
    epoch,
    log_partition,
    log_offset,
    case when highest_before > epoch then 'stale' else 'conflict' end as decided,
    file_id,
    position
from (
    select
        *,
        first_value(canon) over (
            partition by grp, epoch
            order by log_partition, log_offset
        ) as first_canon,
        max(epoch) over (
            partition by grp
            order by log_partition, log_offset
            rows between unbounded preceding and 1 preceding
        ) as highest_before
    from cm_record
    where type <> 'offset_snapshot'
)
where canon <> first_canon;

-- view check_q2: Snapshots that differ from an earlier one of the same revision.
--   grp: Name of the group.
create view check_q2 as
select
    grp,
    topic,
    epoch,
    revision,
    log_partition,
    log_offset,
    file_id,
    position
from (
    select
        *,
        first_value(canon) over (
            partition by grp, topic, epoch, revision
            order by log_partition, log_offset
        ) as first_canon
    from cm_record
    where type = 'offset_snapshot'
)
where canon <> first_canon;

-- view check_q3: The lifecycle record that counts for each group (cm_current).
--   grp: Name of the group.
--   type: group_registration or group_tombstone.
--   partition_count: Partitions with which the group was registered.
create view check_q3 as
select
    grp,
    type,
    topic,
    partition_count,
    epoch,
    log_partition,
    log_offset,
    file_id,
    position
from (
    select
        *,
        row_number() over (
            partition by grp
            order by epoch desc, log_partition, log_offset
        ) as place
    from cm_record
    where type <> 'offset_snapshot'
)
where place = 1;

-- view cm_current: The lifecycle record that counts for each group.
--   grp: Name of the group.
--   type: group_registration or group_tombstone.
--   partition_count: Partitions with which the group was registered.
create view cm_current as
select * from check_q3;

-- view cm_held: Snapshots, each revision once: the one that was met first.
--   grp: Name of the group.
create view cm_held as
select
    grp,
    topic,
    epoch,
    revision,
    log_partition,
    log_offset,
    file_id,
    position
from (
    select
        *,
        row_number() over (
            partition by grp, topic, epoch, revision
            order by log_partition, log_offset
        ) as place
    from cm_record
    where type = 'offset_snapshot'
)
where place = 1;

-- view check_q4: Snapshots that are fenced: no lifecycle, a tombstone, or another epoch.
--   grp: Name of the group.
--   reason: no_lifecycle, deleted or epoch.
create view check_q4 as
select
    h.grp,
    h.topic,
    h.epoch,
    h.revision,
    case
        when c.grp is null then 'no_lifecycle'
        when c.type = 'group_tombstone' then 'deleted'
        else 'epoch'
    end as reason,
    h.file_id,
    h.position
from cm_held as h
left join cm_current as c on c.grp = h.grp
where c.grp is null
   or c.type = 'group_tombstone'
   or c.epoch <> h.epoch;

-- view cm_live: Held snapshots of the life that counts, with what the registration says.
--   grp: Name of the group.
--   group_topic: Topic of the group.
--   partition_count: Partitions with which the group was registered.
--   registration_file_id: File of the registration.
--   registration_position: Byte of the registration.
--   initial_revision: Revision of the offsets that the registration carries; null without.
create view cm_live as
select
    h.grp,
    h.topic,
    h.epoch,
    h.revision,
    c.topic as group_topic,
    c.partition_count,
    c.file_id as registration_file_id,
    c.position as registration_position,
    (
        select max(i.revision)
        from initial_offsets as i
        where i.file_id = c.file_id
          and i.position = c.position
          and i.topic = h.topic
    ) as initial_revision,
    h.file_id,
    h.position
from cm_held as h
join cm_current as c on c.grp = h.grp
where c.type = 'group_registration'
  and c.epoch = h.epoch;

-- view check_q8: Snapshots whose topic is not the exact topic of their live group.
--   grp: Name of the group.
--   group_topic: Topic of the group.
create view check_q8 as
select
    grp,
    topic,
    group_topic,
    epoch,
    revision,
    file_id,
    position
from cm_live
where topic <> group_topic
  and instr(group_topic, '*') = 0
  and instr(group_topic, '?') = 0;

-- view check_q7: Live snapshots with a partition that the registration does not have.
--   grp: Name of the group.
--   partition_count: Partitions with which the group was registered.
create view check_q7 as
select
    l.grp,
    l.topic,
    l.epoch,
    l.revision,
    i.item_partition,
    l.partition_count,
    l.file_id,
    l.position
from cm_live as l
join offset_snapshot_items as i on i.file_id = l.file_id and i.position = l.position
where i.item_partition >= l.partition_count
  and l.revision >= coalesce(l.initial_revision, 0)
  and not exists (
        select 1
        from check_q8 as m
        where m.file_id = l.file_id
          and m.position = l.position
    );

-- view cm_state_item: Offsets of snapshots and of registrations, by the record that holds them.
create view cm_state_item as
select
    s.file_id,
    s.position,
    s.topic,
    i.item_partition,
    i.item_offset
from offset_snapshots as s
join offset_snapshot_items as i on i.file_id = s.file_id and i.position = s.position
union all
select
    file_id,
    position,
    topic,
    item_partition,
    item_offset
from initial_offsets
where item_partition >= 0;

-- view cm_chain: Each live snapshot and the state that it meets, revision by revision.
--   grp: Name of the group.
--   before_file_id: File of the record that holds the offsets before; null without.
--   before_position: Byte of that record.
--   accepted: 1 when nothing that was committed disappears or goes back.
create view cm_chain as
with recursive
    candidate as materialized (
        select
            l.grp,
            l.topic,
            l.epoch,
            l.revision,
            l.file_id,
            l.position,
            case when l.initial_revision is not null then l.registration_file_id end as initial_file_id,
            case when l.initial_revision is not null then l.registration_position end as initial_position,
            row_number() over (partition by l.grp, l.topic order by l.revision) as n
        from cm_live as l
        where l.revision > coalesce(l.initial_revision, 0)
          and not exists (
                select 1 from check_q8 as m
                where m.file_id = l.file_id and m.position = l.position
            )
          and not exists (
                select 1 from check_q7 as m
                where m.file_id = l.file_id and m.position = l.position
            )
    ),
    walk (grp, topic, n, file_id, position, before_file_id, before_position, accepted) as (
        select grp, topic, 0, null, null, initial_file_id, initial_position, 0
        from candidate
        where n = 1
        union all
        select
            c.grp,
            c.topic,
            c.n,
            c.file_id,
            c.position,
            case when w.accepted then w.file_id else w.before_file_id end,
            case when w.accepted then w.position else w.before_position end,
            not exists (
                select 1
                from cm_state_item as b
                where b.file_id = case when w.accepted then w.file_id else w.before_file_id end
                  and b.position = case when w.accepted then w.position else w.before_position end
                  and b.topic = c.topic
                  and not exists (
                        select 1
                        from offset_snapshot_items as a
                        where a.file_id = c.file_id
                          and a.position = c.position
                          and a.item_partition = b.item_partition
                          and a.item_offset >= b.item_offset
                    )
            )
        from walk as w
        join candidate as c on c.grp = w.grp and c.topic = w.topic and c.n = w.n + 1
    )
select
    w.grp,
    w.topic,
    c.epoch,
    c.revision,
    w.file_id,
    w.position,
    w.before_file_id,
    w.before_position,
    w.accepted
from walk as w
join candidate as c on c.file_id = w.file_id and c.position = w.position
where w.n > 0;

-- view check_q5: Offsets that a live snapshot moves back.
--   grp: Name of the group.
--   before_offset: Offset before.
create view check_q5 as
select
    c.grp,
    c.topic,
    c.epoch,
    c.revision,
    a.item_partition,
    a.item_offset,
    b.item_offset as before_offset,
    c.file_id,
    c.position
from cm_chain as c
join offset_snapshot_items as a on a.file_id = c.file_id and a.position = c.position
join cm_state_item as b
    on b.file_id = c.before_file_id
   and b.position = c.before_position
   and b.topic = c.topic
   and b.item_partition = a.item_partition
where a.item_offset < b.item_offset;

-- view check_q6: Committed partitions that a live snapshot leaves out.
--   grp: Name of the group.
--   item_partition: Partition that is left out.
create view check_q6 as
select
    c.grp,
    c.topic,
    c.epoch,
    c.revision,
    b.item_partition,
    c.file_id,
    c.position
from cm_chain as c
join cm_state_item as b
    on b.file_id = c.before_file_id
   and b.position = c.before_position
   and b.topic = c.topic
where not exists (
    select 1
    from offset_snapshot_items as a
    where a.file_id = c.file_id
      and a.position = c.position
      and a.item_partition = b.item_partition
);

-- view check_q9: Live groups whose exact topic the manifest does not declare.
--   grp: Name of the group.
create view check_q9 as
select
    c.grp,
    c.topic,
    c.epoch
from cm_current as c
where c.type = 'group_registration'
  and instr(c.topic, '*') = 0
  and instr(c.topic, '?') = 0
  and not exists (
        select 1
        from topics as t
        where t.topic = c.topic
          and t.declared = 1
    );

-- view check_q10: Revisions that are missing between two of one (group, topic, epoch).
--   grp: Name of the group.
--   after_revision: Revision before the hole.
create view check_q10 as
select
    grp,
    topic,
    epoch,
    after_revision,
    revision,
    file_id,
    position
from (
    select
        *,
        lag(revision) over (
            partition by grp, topic, epoch
            order by revision
        ) as after_revision,
        lag(printf('%020s', revision)) over (
            partition by grp, topic, epoch
            order by revision
        ) as low,
        printf('%020s', revision) as high
    from cm_held
)
where after_revision is not null
  and (cast(substr(replace(high, ' ', '0'), 1, 10) as integer)
        - cast(substr(replace(low, ' ', '0'), 1, 10) as integer)) * 10000000000
    + cast(substr(replace(high, ' ', '0'), 11) as integer)
    - cast(substr(replace(low, ' ', '0'), 11) as integer) > 1;

-- view check_q11: Groups with snapshots but without any lifecycle record.
--   grp: Name of the group.
--   snapshots: Snapshots that nobody owns.
--   highest_epoch: Highest epoch among them.
create view check_q11 as
select
    r.grp,
    r.topic,
    count(*) as snapshots,
    max(r.epoch) as highest_epoch
from cm_record as r
where r.type = 'offset_snapshot'
  and not exists (
        select 1
        from cm_current as c
        where c.grp = r.grp
    )
group by r.grp, r.topic;

-- view check_q12: Counters of a broker against sums over dispositions; empty when they agree.
--   counter: Name of the counter.
--   by_records: Sum over dispositions.
--   by_broker: What the broker would say.
create view check_q12 as
with counted (counter, by_records) as (
    select 'orphan_records', count(*)
    from consumer_records
    where state = 'live'
      and disposition not in (
            'lifecycle_current', 'snapshot_current', 'snapshot_superseded', 'rejected', 'evidence'
        )
    union all
    select 'corrupt_records', count(*)
    from consumer_records
    where state = 'live'
      and disposition = 'rejected'
    union all
    select 'registration_records', count(*)
    from lifecycle_records
    where state = 'live'
    union all
    select 'offset_records', count(*)
    from offset_snapshots
    where state = 'live'
    union all
    select 'replayed_records', count(*)
    from consumer_records
    where state = 'live'
),
said (counter, by_broker) as (
    select 'orphan_records', orphan_records from consumer_status where ready = 1
    union all
    select 'corrupt_records', corrupt_records from consumer_status where ready = 1
    union all
    select 'registration_records', registration_records from consumer_status where ready = 1
    union all
    select 'offset_records', offset_records from consumer_status where ready = 1
    union all
    select 'replayed_records', replayed_records from consumer_status where ready = 1
)
select
    s.counter,
    c.by_records,
    s.by_broker
from said as s
join counted as c on c.counter = s.counter
where c.by_records <> s.by_broker;

-- view offset_regressions: Offsets that a refused snapshot of the life that counts moves back.
--   before_offset: Committed offset before.
--   timestamp: When it was written; decides nothing.
create view offset_regressions as
select
    s.group_name,
    s.topic,
    q.item_partition,
    s.epoch,
    s.revision,
    q.item_offset,
    q.before_offset,
    s.timestamp,
    f.path,
    s.file_id,
    s.position,
    s.length
from offset_snapshots as s
join check_q5 as q on q.file_id = s.file_id and q.position = s.position
join files as f on f.file_id = s.file_id
where s.code = 'snapshot_offset_regression';
