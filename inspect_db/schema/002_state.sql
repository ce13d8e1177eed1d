-- What the replay made of consumer metadata, the journal, producers and aggregates.

-- table consumer_records: Every record of __consumer_offsets and what became of it.
--   shape: Shape of an unversioned record: single, bulk, unrecognised or invalid_json.
--   newer_version: Version of a record that a later release wrote.
--   key: Key of the disk record.
--   payload: Beginning of a payload that was not accepted.
create table consumer_records (
    file_id integer not null references files (file_id),
    position integer not null,
    length integer not null,
    log_partition integer not null,
    log_offset any not null,
    state text not null,
    disposition text not null,
    code text,
    shape text,
    newer_version any,
    key any,
    payload blob,
    primary key (file_id, position)
) strict, without rowid;

-- table lifecycle_records: Registrations and tombstones of groups.
--   type: group_registration or group_tombstone.
--   topic: Topic of the group, exact or a pattern.
--   partition_count: Partitions with which the group was registered.
--   timestamp: When it was written; decides nothing.
--   canonical: Canonical encoding with the zero time: equal for the same record.
create table lifecycle_records (
    file_id integer not null references files (file_id),
    position integer not null,
    length integer not null,
    log_partition integer not null,
    log_offset any not null,
    state text not null,
    disposition text not null,
    code text,
    type text not null,
    group_name any not null,
    topic any not null,
    partition_count integer not null,
    epoch any not null,
    timestamp text not null,
    canonical blob not null,
    primary key (file_id, position)
) strict, without rowid;

create index lifecycle_records_by_group on lifecycle_records (group_name, epoch);

-- table offset_snapshots: Snapshots: all committed offsets of one (group, topic).
--   topic: Topic that the offsets are for.
--   timestamp: When it was written; decides nothing.
--   canonical: Canonical encoding with the zero time: equal for the same record.
--   previous_revision: Revision before this one in the same (group, topic, epoch).
--   revision_step: revision minus previous_revision; null for the first.
create table offset_snapshots (
    file_id integer not null references files (file_id),
    position integer not null,
    length integer not null,
    log_partition integer not null,
    log_offset any not null,
    state text not null,
    disposition text not null,
    code text,
    group_name any not null,
    topic any not null,
    epoch any not null,
    revision any not null,
    timestamp text not null,
    canonical blob not null,
    previous_revision any,
    revision_step any,
    primary key (file_id, position)
) strict, without rowid;

create index offset_snapshots_by_group on offset_snapshots (group_name, topic, epoch, revision);

-- table offset_snapshot_items: The offsets of each snapshot.
--   previous_offset: Offset of this partition in the revision before.
--   change: item_offset minus previous_offset; TEXT with a sign where it does not fit 64 bits.
create table offset_snapshot_items (
    file_id integer not null references files (file_id),
    position integer not null,
    item_partition integer not null,
    item_offset any not null,
    previous_offset any,
    change any,
    primary key (file_id, position, item_partition)
) strict, without rowid;

-- table initial_offsets: Offsets that a registration carries with it.
--   topic: Topic that the offsets are for.
--   item_partition: Partition; -1 says that the topic is known and has no offsets.
create table initial_offsets (
    file_id integer not null references files (file_id),
    position integer not null,
    topic any not null,
    revision any not null,
    item_partition integer not null,
    item_offset any,
    primary key (file_id, position, topic, item_partition)
) strict, without rowid;

-- table historical_offsets: Highest offset in unversioned records of older builds; never state.
create table historical_offsets (
    group_name any not null,
    topic any not null,
    partition any not null,
    item_offset any not null,
    primary key (group_name, topic, partition)
) strict, without rowid;

-- table replayed_groups: Groups after the replay.
--   state: live or deleted.
--   topic: Topic of a live group, exact or a pattern.
--   partition_count: Partitions with which a live group was registered.
--   floor: Lowest epoch that a new registration may take.
create table replayed_groups (
    group_name any not null primary key,
    state text not null,
    topic any,
    partition_count integer,
    epoch any not null,
    floor any
) strict, without rowid;

-- table replayed_revisions: Current revision of each (group, topic).
create table replayed_revisions (
    group_name any not null,
    topic any not null,
    revision any not null,
    primary key (group_name, topic)
) strict, without rowid;

-- table replayed_offsets: Committed offsets after the replay, against their logs.
--   committed_offset: The next offset to read.
--   log_start: Log start of the partition; null without a log.
--   log_end: Next offset of the partition; null without a log.
--   lag: Records between the committed offset and the log end; 0 at or beyond the end.
--   place: in_log, below_start, beyond_end or no_log.
--   outside_by: How far it is outside of the log.
create table replayed_offsets (
    group_name any not null,
    topic any not null,
    partition any not null,
    committed_offset any not null,
    log_start any,
    log_end any,
    lag any,
    place text not null,
    outside_by any,
    primary key (group_name, topic, partition)
) strict, without rowid;

-- table journal_frames: Frames of the transaction journal.
--   version: Version of the payload.
--   kind: snapshot, delta or watermark.
--   state: State of the transaction after this frame.
--   epoch: Producer epoch.
--   revision: Counts every change of a transaction.
--   updated_at: When it was written.
--   salvage: 1 for a good frame behind a problem; evidence, never state.
create table journal_frames (
    position integer primary key,
    file_id integer not null references files (file_id),
    length integer not null,
    version integer not null,
    kind text not null,
    transactional_id any not null,
    state any not null,
    epoch any not null,
    revision any not null,
    updated_at text not null,
    salvage integer not null
) strict;

-- table transactions: Last state of each transactional id in the journal.
--   epoch: Producer epoch.
--   revision: Counts every change.
--   state: open, committing, committed or aborted.
--   ready: 1 when a new transaction may begin.
--   expired: 1 for a tombstone.
--   created_at: When it began.
--   updated_at: When it last changed.
--   staged_records: Records that are staged in the journal.
--   staged_offsets: Consumer offsets that are staged in the journal.
--   position: Byte of the frame that holds this state.
create table transactions (
    transactional_id any not null primary key,
    producer any not null,
    epoch any not null,
    revision any not null,
    state any not null,
    ready integer not null,
    expired integer not null,
    created_at text not null,
    updated_at text not null,
    staged_records integer not null,
    staged_offsets integer not null,
    position integer
) strict, without rowid;

-- table transaction_partitions: Each partition that a transaction touches, in the journal or in a log.
--   epoch: Producer epoch.
--   staged_records: Records staged in the journal for it.
--   open_records: Records in the log whose state is open.
--   first_open_offset: Offset of the first of them.
--   marker: commit or abort; null when the log has no marker.
--   marker_offset: Offset of the marker.
create table transaction_partitions (
    transactional_id any not null,
    epoch any not null,
    topic any not null,
    partition any not null,
    staged_records integer not null,
    open_records integer not null,
    first_open_offset any,
    marker any,
    marker_offset any,
    primary key (transactional_id, epoch, topic, partition)
) strict, without rowid;

-- table transaction_offsets: Consumer offsets that are staged in a transaction.
--   item: Number of the item in the transaction.
--   registration_epoch: Epoch of the group when the commit was decided; 0 before.
create table transaction_offsets (
    transactional_id any not null,
    item integer not null,
    group_name any not null,
    topic any not null,
    partition any not null,
    item_offset any not null,
    registration_epoch any,
    primary key (transactional_id, item)
) strict, without rowid;

-- table producer_states: Last sequence of each producer in each partition.
--   log_epoch: Epoch of its last record in the log.
--   log_sequence: Sequence of that record.
--   checkpoint_epoch: Epoch in the checkpoint.
--   checkpoint_sequence: Sequence in the checkpoint.
--   effective_epoch: Epoch that counts after a start.
--   effective_sequence: Sequence that counts after a start.
create table producer_states (
    topic any not null,
    partition any not null,
    producer any not null,
    log_epoch any,
    log_sequence any,
    checkpoint_epoch any,
    checkpoint_sequence any,
    effective_epoch any,
    effective_sequence any,
    primary key (topic, partition, producer)
) strict, without rowid;

-- table producer_runs: Records of one producer under one epoch in one partition.
--   epoch: Producer epoch.
--   first_sequence: Sequence of the first record.
--   last_sequence: Highest sequence.
--   records: Records.
--   gaps: Places where a sequence is not the next one; compaction leaves some of its own.
--   duplicates: Records whose sequence is not above the one before.
create table producer_runs (
    topic any not null,
    partition any not null,
    producer any not null,
    epoch any not null,
    first_sequence any not null,
    last_sequence any not null,
    first_offset any not null,
    last_offset any not null,
    records integer not null,
    gaps integer not null,
    duplicates integer not null,
    primary key (topic, partition, producer, epoch)
) strict, without rowid;

-- table checkpoints: Numbers that a broker keeps beside the logs, against the logs.
--   kind: hwm, producers or lifecycle_epoch.
--   present: 1 when the file is there.
--   form: Form of a producer checkpoint.
--   stored: Number in the file; null when it is not readable.
--   actual: What the log, or the manifest, says.
--   difference: stored minus actual.
create table checkpoints (
    path any not null primary key,
    file_id integer references files (file_id),
    kind text not null,
    topic any not null,
    partition any,
    present integer not null,
    form text,
    stored any,
    actual any,
    difference any
) strict, without rowid;

-- table aggregates: Highest version of each aggregate in the log of an event-sourcing topic.
--   key: Key of the aggregate.
--   version: Highest version.
create table aggregates (
    topic any not null,
    partition any not null,
    key any not null,
    version any not null,
    primary key (topic, partition, key)
) strict, without rowid;

-- table aggregate_gaps: Versions of aggregates that the log skips.
--   gap_id: Place in the order of findings.
--   key: Key of the aggregate.
--   expected: Version that was due.
--   found: Version that stands there.
create table aggregate_gaps (
    gap_id integer primary key,
    file_id integer references files (file_id),
    position integer,
    length integer,
    topic any not null,
    partition any not null,
    key any not null,
    expected any not null,
    found any not null
) strict;

-- table aggregate_snapshots: Saved states of aggregates; they come from clients and cannot be derived.
--   key: Key of the aggregate.
--   version: Version that was saved.
--   payload_bytes: Bytes of the saved state.
--   current: 1 for the one that counts for its key.
create table aggregate_snapshots (
    file_id integer not null references files (file_id),
    position integer not null,
    length integer not null,
    topic any not null,
    partition any not null,
    key any not null,
    version any not null,
    payload_bytes integer not null,
    current integer not null,
    primary key (file_id, position)
) strict, without rowid;

-- table finding_codes: The catalogue: what each finding means and what to do.
--   severity: Usual severity.
--   effect: Usual effect.
--   step: Usual recovery step.
--   meaning: What it means.
--   action: What to do.
--   also_named: Other names of the specification, as a JSON array.
create table finding_codes (
    code text not null primary key,
    severity text not null,
    effect text not null,
    step integer,
    meaning text not null,
    action text not null,
    also_named text not null
) strict, without rowid;

-- table findings: Everything that was found, in the order in which a broker would meet it.
--   finding_id: Place in that order.
--   action: What to do about it.
--   lost_bytes: Bytes that are lost, where known.
--   lost_records: Records that are lost, where known.
--   lost_first_offset: First offset that is lost, where known.
--   lost_last_offset: Last offset that is lost, where known.
--   detail: Facts behind the message, as a JSON object.
create table findings (
    finding_id integer primary key,
    code text not null references finding_codes (code),
    severity text not null,
    effect text not null,
    step integer,
    path any not null,
    file_id integer references files (file_id),
    position integer,
    length integer,
    message any not null,
    action text not null,
    lost_bytes any,
    lost_records any,
    lost_first_offset any,
    lost_last_offset any,
    detail text not null
) strict;

-- table recovery_steps: The five steps of a start.
--   name: Name of the step.
--   outcome: passed, repairs, refuses or not_reached.
create table recovery_steps (
    step integer primary key,
    name text not null,
    outcome text not null
) strict;

-- table recovery_actions: What a start would do, in order; empty when it refuses.
--   action_id: Place in the order.
--   kind: cut_log, finish_transaction, raise_hwm and so on.
--   detail: Facts behind the message, as a JSON object.
create table recovery_actions (
    action_id integer primary key,
    step integer not null,
    kind text not null,
    path any not null,
    file_id integer references files (file_id),
    position integer,
    message any not null,
    detail text not null
) strict;
