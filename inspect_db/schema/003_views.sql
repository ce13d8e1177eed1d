-- Judgement: what the facts mean.

-- view records: Records with their names in place of numbers.
--   record_offset: Offset of the record.
--   key: Key; null for none.
--   producer: Name of the producer; null for none.
--   epoch: Producer epoch.
--   sequence: Sequence of the producer.
--   event_type: Event type.
--   schema_version: Schema version.
--   aggregate_version: Version of the aggregate.
--   transaction_state: open, committed or aborted.
--   transaction_marker: commit or abort.
--   control_type: transaction for control records.
--   payload_bytes: Bytes of the payload.
--   payload: First bytes of the payload, with --payload-bytes.
--   deleted: 1 in a segment that retention marked.
--   reachable: 0 behind damage.
create view records as
select
    coalesce(s.topic, f.topic) as topic,
    coalesce(s.partition, f.partition) as partition,
    r.record_offset,
    r.key,
    s.producer,
    s.epoch,
    coalesce(r.sequence, 0) as sequence,
    s.event_type,
    s.schema_version,
    coalesce(r.aggregate_version, 0) as aggregate_version,
    s.transactional_id,
    s.transaction_state,
    s.transaction_marker,
    s.control_type,
    r.payload_bytes,
    r.payload,
    g.deleted,
    s.reachable,
    f.path,
    r.file_id,
    r.position,
    r.length
from record_rows as r
join record_shapes as s on s.shape_id = r.shape_id
join files as f on f.file_id = r.file_id
join segments as g on g.file_id = r.file_id;

-- view aggregate_events: Records that are versions of an aggregate.
--   record_offset: Offset of the record.
--   key: Key of the aggregate.
--   aggregate_version: Version that the record makes.
--   event_type: Event type.
--   schema_version: Schema version.
create view aggregate_events as
select
    topic,
    partition,
    key,
    aggregate_version,
    record_offset,
    event_type,
    schema_version,
    file_id,
    position,
    length
from records
where key is not null
  and aggregate_version > 0
  and reachable = 1
  and deleted = 0;

-- view recovered: Does a start get past step 3, so that groups exist in a broker?
--   recovered: 1 yes, 0 no.
create view recovered as
select not exists (
    select 1
    from recovery_steps
    where step <= 3
      and outcome in ('refuses', 'not_reached')
) as recovered;

-- view consumer_groups: What the replay leaves of each group.
--   state: live or deleted.
--   topic: Topic of a live group, exact or a pattern.
--   partition_count: Partitions with which a live group was registered.
--   floor: Lowest epoch that a new registration may take.
--   committed_partitions: Partitions with a committed offset.
--   recovered: 0 where a refusal means that the broker never gets there.
create view consumer_groups as
select
    g.group_name,
    g.state,
    g.topic,
    g.partition_count,
    g.epoch,
    g.floor,
    (
        select count(*)
        from replayed_offsets as o
        where o.group_name = g.group_name
    ) as committed_partitions,
    r.recovered
from replayed_groups as g
cross join recovered as r;

-- view committed_offsets: Committed offsets that the replay leaves.
--   committed_offset: The next offset to read.
--   recovered: 0 where a refusal means that the broker never gets there.
create view committed_offsets as
select
    o.group_name,
    o.topic,
    o.partition,
    o.committed_offset,
    v.revision,
    g.epoch,
    r.recovered
from replayed_offsets as o
join replayed_groups as g on g.group_name = o.group_name
left join replayed_revisions as v on v.group_name = o.group_name and v.topic = o.topic
cross join recovered as r;

-- view consumer_lag: Committed offsets against the ends of their logs.
--   committed_offset: The next offset to read.
--   log_start: Log start of the partition; null without a log.
--   log_end: Next offset of the partition; null without a log.
--   lag: Records that are still to be read.
--   place: in_log, below_start, beyond_end or no_log.
--   outside_by: How far the offset is outside of the log.
create view consumer_lag as
select
    group_name,
    topic,
    partition,
    committed_offset,
    log_start,
    log_end,
    lag,
    place,
    outside_by
from replayed_offsets;

-- view lifecycle_epochs: The lives of each group in order.
--   type: group_registration begins a life, group_tombstone ends it.
--   topic: Topic of the group, exact or a pattern.
--   partition_count: Partitions with which it was registered.
--   timestamp: When it was written; decides nothing.
--   snapshots: Snapshots of that life that are still in the log.
create view lifecycle_epochs as
select
    l.group_name,
    l.epoch,
    l.type,
    l.topic,
    l.partition_count,
    l.timestamp,
    l.disposition,
    l.code,
    (
        select count(*)
        from offset_snapshots as s
        where s.group_name = l.group_name
          and s.epoch = l.epoch
          and s.state = 'live'
    ) as snapshots,
    f.path,
    l.file_id,
    l.position,
    l.length
from lifecycle_records as l
join files as f on f.file_id = l.file_id
where l.state = 'live';

-- view offset_revisions: Every revision of every committed offset, with its change.
--   previous_offset: Offset of this partition in the revision before.
--   change: Difference to it.
--   previous_revision: Revision before this one.
--   revision_step: Difference to it; above 1, revisions between are gone.
--   timestamp: When it was written; decides nothing.
create view offset_revisions as
select
    s.group_name,
    s.topic,
    i.item_partition,
    s.epoch,
    s.revision,
    i.item_offset,
    i.previous_offset,
    i.change,
    s.previous_revision,
    s.revision_step,
    s.timestamp,
    s.disposition,
    s.code,
    s.state,
    f.path,
    s.file_id,
    s.position,
    s.length
from offset_snapshots as s
join offset_snapshot_items as i on i.file_id = s.file_id and i.position = s.position
join files as f on f.file_id = s.file_id;

-- view fenced_snapshots: Snapshots that do not count, and why.
--   reason: Why it does not count.
--   current_epoch: Epoch of the lifecycle record that counts; null without one.
create view fenced_snapshots as
select
    s.group_name,
    s.topic,
    s.epoch,
    s.revision,
    s.disposition,
    case s.disposition
        when 'snapshot_no_lifecycle' then 'no registration of the group is in the log'
        when 'snapshot_fenced_deleted' then 'the group was deleted'
        when 'snapshot_fenced_epoch' then 'it belongs to another life of the group'
        when 'snapshot_stale_revision' then 'the registration carries newer offsets'
        when 'snapshot_equals_initial' then 'the registration carries the same offsets'
        when 'snapshot_duplicate' then 'the same record stands in the log already'
    end as reason,
    g.epoch as current_epoch,
    f.path,
    s.file_id,
    s.position,
    s.length
from offset_snapshots as s
join files as f on f.file_id = s.file_id
left join replayed_groups as g on g.group_name = s.group_name
where s.state = 'live'
  and s.disposition not in ('snapshot_current', 'snapshot_superseded', 'rejected', 'evidence');

-- view epoch_conflicts: Lifecycle records that contradict another of the same epoch.
--   type: group_registration or group_tombstone.
--   topic: Topic of the group, exact or a pattern.
--   partition_count: Partitions with which it was registered.
create view epoch_conflicts as
select
    l.group_name,
    l.epoch,
    l.type,
    l.topic,
    l.partition_count,
    f.path,
    l.file_id,
    l.position,
    l.length
from lifecycle_records as l
join files as f on f.file_id = l.file_id
where l.code = 'lifecycle_conflict';

-- view revision_conflicts: Snapshots that contradict another of the same revision.
create view revision_conflicts as
select
    s.group_name,
    s.topic,
    s.epoch,
    s.revision,
    s.code,
    f.path,
    s.file_id,
    s.position,
    s.length
from offset_snapshots as s
join files as f on f.file_id = s.file_id
where s.code in ('offset_snapshot_conflict', 'initial_offset_revision_conflict');

-- view dropped_partitions: Snapshots that leave out a partition that was committed.
--   timestamp: When it was written; decides nothing.
create view dropped_partitions as
select
    s.group_name,
    s.topic,
    s.epoch,
    s.revision,
    s.timestamp,
    f.path,
    s.file_id,
    s.position,
    s.length
from offset_snapshots as s
join files as f on f.file_id = s.file_id
where s.code = 'snapshot_dropped_partition';

-- view orphan_directories: Directories with logs that a readable manifest does not declare.
--   storage_partitions: Partitions that have files.
--   files: Files in the directory.
--   bytes: Bytes of these files.
create view orphan_directories as
select
    t.topic,
    t.storage_partitions,
    count(f.file_id) as files,
    coalesce(sum(f.size), 0) as bytes
from topics as t
left join files as f on f.topic = t.topic and f.type = 'file'
where t.state = 'undeclared'
  and t.directory = 1
  and t.storage_partitions > 0
group by t.topic;

-- view declared_without_storage: Declared topics whose partitions have no live log.
--   partitions: Partitions that the manifest declares.
--   storage_partitions: Partitions with at least one live segment.
create view declared_without_storage as
select
    t.topic,
    t.partitions,
    (
        select count(*)
        from partitions as p
        where p.topic = t.topic
          and p.partition < t.partitions
          and p.segment_count > 0
    ) as storage_partitions
from topics as t
where t.declared = 1
  and (
        select count(*)
        from partitions as p
        where p.topic = t.topic
          and p.partition < t.partitions
          and p.segment_count > 0
    ) < t.partitions;

-- view open_transactions: Transactions that are neither committed nor aborted.
--   epoch: Producer epoch.
--   state: open or committing.
--   created_at: When it began.
--   updated_at: When it last changed.
--   staged_records: Records that are staged in the journal.
--   staged_offsets: Consumer offsets that are staged in the journal.
--   partitions: Partitions with staged records.
--   partitions_without_marker: Those of them whose log has no marker yet.
create view open_transactions as
select
    t.transactional_id,
    t.producer,
    t.epoch,
    t.state,
    t.created_at,
    t.updated_at,
    t.staged_records,
    t.staged_offsets,
    count(p.topic) as partitions,
    count(p.topic) - count(p.marker) as partitions_without_marker
from transactions as t
left join transaction_partitions as p
    on p.transactional_id = t.transactional_id
   and p.epoch = t.epoch
   and p.staged_records > 0
where t.state in ('open', 'committing', 'prepare_commit', 'prepare_abort')
  and t.expired = 0
  and t.ready = 0
group by t.transactional_id;

-- view persistence_unit: Files that belong together and must be saved and restored as one.
--   kind: What the name says.
--   class: authoritative or client_data must be saved; derived is rebuilt.
--   size: Bytes.
--   needed: 1 when it cannot be rebuilt.
create view persistence_unit as
select
    path,
    kind,
    class,
    size,
    class in ('authoritative', 'client_data') as needed,
    file_id
from files
where type = 'file'
  and class in ('authoritative', 'client_data', 'derived');
