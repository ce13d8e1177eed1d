-- The index of a log directory: facts.
--
-- How to read this file (inspect_db/schema_docs.py does): a block
--
--     -- table NAME: sentence
--     --   column: sentence
--
-- stands before each object. Columns that mean the same everywhere stand once,
-- under "glossary". Columns of type ANY hold unsigned 64-bit numbers (INTEGER up
-- to 2^63-1, above that TEXT of 20 digits, so that ORDER BY stays right) or names
-- (TEXT when valid UTF-8 without NUL, else BLOB). Never subtract such numbers in
-- SQL: the loader has computed the differences.
--
-- glossary:
--   file_id: Number of the entry in files.
--   path: Path below the log directory, with / separators.
--   position: Byte at which it begins in its file.
--   index_finding_id: Number of the finding about an index.
--   gap_id: Number of the gap.
--   length: Bytes that it takes in its file.
--   topic: Name of the topic.
--   partition: Number of the partition.
--   group_name: Name of the consumer group.
--   epoch: Lifecycle epoch of the group; the highest one counts.
--   revision: Number of the offset snapshot of one (group, topic) within one epoch.
--   log_partition: Partition of __consumer_offsets in which the record stands.
--   log_offset: Offset of the record in that partition.
--   disposition: What the replay decided about the record (consumer-metadata.md 5.7).
--   code: Code of the finding, explained in finding_codes.
--   state: Where the record stands: live, deleted (segment) or unreachable (behind damage).
--   item_partition: Partition that the committed offset is for.
--   item_offset: Committed offset: the next one to read.
--   transactional_id: Name under which a producer runs its transactions.
--   producer: Name of the producer.
--   message: What was found, in words.
--   severity: error, warning or info.
--   effect: What a broker does about it: refuses, unknown, data_missing, repairs, recovers, ignores.
--   step: Recovery step 1 to 5; null when it belongs to none.
--   first_offset: Offset of the first record; null without one.
--   last_offset: Offset of the last record; null without one.

pragma application_id = 1129665107;
pragma user_version = 2;

-- table build: How and when this index was made; one row.
--   schema_version: Version of these scripts.
--   tool_version: Version of inspect-db.
--   built_at: When, in UTC.
--   log_dir: The directory that was read.
--   as_of: Moment at which the start was judged.
--   in_use: 1 while a broker was using the directory, 0 not, null not known.
--   verdict: starts_clean, starts_with_repairs, starts_with_damage, undetermined or refuses.
--   records_mode: Which records are in record_rows: all, internal or none.
--   payload_bytes: How many bytes of each payload were copied.
--   hashed: 1 with --hash.
--   config: The settings of a broker that the start was judged with, as a JSON object.
--   changed_files: Files that changed or appeared while the index was built; 0 means one moment.
--   inventory: What cursus-storage manifest inspect prints; null when it refuses.
--   inventory_error: Why it refuses.
create table build (
    schema_version integer not null,
    tool_version text not null,
    built_at text not null,
    log_dir any not null,
    as_of text not null,
    in_use integer,
    verdict text not null,
    records_mode text not null,
    payload_bytes integer not null,
    hashed integer not null,
    config text not null,
    changed_files integer not null,
    inventory blob,
    inventory_error any
) strict;

-- table consumer_status: What a broker says of its consumer metadata recovery; one row.
--   phase: Phase that was reached.
--   ready: 1 when the replay succeeded.
--   failure: First failure, in the words of a broker.
--   failure_code: Code of the first failure.
--   restored_groups: Live groups.
--   restored_offsets: Committed offsets of live groups.
--   replayed_records: Records that were read.
--   registration_records: Registrations and tombstones among them.
--   offset_records: Snapshots among them.
--   orphan_records: Records that the broker counts as orphans.
--   corrupt_records: Records that it refuses; it stops at the first.
create table consumer_status (
    phase text not null,
    ready integer not null,
    failure any,
    failure_code text,
    restored_groups integer not null,
    restored_offsets integer not null,
    replayed_records integer not null,
    registration_records integer not null,
    offset_records integer not null,
    orphan_records integer not null,
    corrupt_records integer not null
) strict;

-- table files: Everything below the log directory, by path.
--   kind: What the name says.
--   class: authoritative, derived, client_data, temporary, lock or foreign.
--   type: What stands there: file, directory, symlink, fifo, socket, device or gone.
--   topic: Topic that the name belongs to.
--   partition: Partition in the name.
--   base_offset: Base offset in the name.
--   marker_bytes: Log size in the name of a compaction marker.
--   size: Bytes.
--   mtime_ns: Modification time in nanoseconds since 1970.
--   ctime_ns: Time of the last change of any kind; unlike mtime_ns it cannot be put back.
--   mode: Permission bits.
--   device: Device number.
--   inode: Inode number.
--   content: Digest of the file: SHA-256 over the SHA-256 of its blocks of 1 MiB; null where it was not read.
--   sha256: SHA-256 of the whole file, with --hash.
--   changed: 1 when the file changed while it was read.
create table files (
    file_id integer primary key,
    path any not null unique,
    kind text not null,
    class text not null,
    type text not null,
    topic any,
    partition any,
    base_offset any,
    marker_bytes any,
    size integer not null,
    mtime_ns integer not null,
    ctime_ns integer not null,
    mode integer not null,
    device any not null,
    inode any not null,
    content blob,
    sha256 blob,
    changed integer not null
) strict;

-- table file_blocks: SHA-256 of each block of 1 MiB of the logs; with --hash of every file.
--   block: Number of the block, from 0.
--   sha256: SHA-256 of its bytes.
create table file_blocks (
    file_id integer not null references files (file_id),
    block integer not null,
    position integer not null,
    length integer not null,
    sha256 blob not null,
    primary key (file_id, block)
) strict, without rowid;

-- table topics: Topics that the manifest declares or that have a directory.
--   declared: 1 when the manifest declares it.
--   directory: 1 when it has a directory.
--   state: live, undeclared, reset_pending (a start refuses) or resumable (a start empties it).
--   lifecycle_epoch: Epoch in the manifest.
--   marker_epoch: Epoch in the lifecycle marker of the directory.
--   revision: Revision of the definition.
--   partitions: Partitions that the manifest declares.
--   storage_partitions: Partitions that have files.
--   replication_factor: As declared.
--   idempotent: 1 when producers must be idempotent.
--   event_sourcing: 1 when keys are aggregates with versions.
--   cleanup_policy: delete, compact or both.
--   partitioner: How keys are spread.
--   auth_policy: Who may read and write.
--   retention_hours: 0 means no limit.
--   retention_bytes: 0 means no limit.
create table topics (
    topic any not null primary key,
    declared integer not null,
    directory integer not null,
    state text not null,
    lifecycle_epoch any,
    marker_epoch any,
    revision any,
    partitions any,
    storage_partitions integer not null,
    replication_factor any,
    idempotent integer,
    event_sourcing integer,
    cleanup_policy any,
    partitioner any,
    auth_policy any,
    retention_hours any,
    retention_bytes any
) strict, without rowid;

-- table partitions: Each partition that has files, and where its log begins and ends.
--   internal: 1 for __consumer_offsets.
--   log_start: Base of the lowest segment; what a broker calls log start.
--   first_offset: First record found; may be above log_start after compaction.
--   log_end: Last offset + 1, as the inspector sees it.
--   next_offset: Offset that a broker would give to the next record.
--   hwm_checkpoint: High watermark in the checkpoint file; null without a readable one.
--   hwm_effective: High watermark after a start; null when the log does not open.
--   record_count: Reachable records in live segments.
--   segment_count: Live segments.
--   deleted_count: Segments marked as deleted.
--   missing_offsets: Offsets that gaps between segments leave out.
--   cut_position: Where a start would cut the active segment; null when it would not.
--   readable: 0 when a segment could not be read.
--   damaged: 1 when a segment has damage.
create table partitions (
    topic any not null,
    partition any not null,
    internal integer not null,
    log_start any not null,
    first_offset any,
    log_end any not null,
    next_offset any not null,
    hwm_checkpoint any,
    hwm_effective any,
    record_count integer not null,
    segment_count integer not null,
    deleted_count integer not null,
    missing_offsets any not null,
    cut_position integer,
    readable integer not null,
    damaged integer not null,
    primary key (topic, partition)
) strict, without rowid;

-- table segments: Each segment log, as one scan from byte 0 saw it.
--   base_offset: Base offset in the name.
--   active: 1 for the last live segment of its partition.
--   deleted: 1 for a segment that retention marked.
--   compacted: 1 when a valid compaction marker allows gaps.
--   size: Bytes of the file.
--   ends: clean, torn, in_progress, damaged or unreadable.
--   end_position: First byte that belongs to no good frame.
--   record_count: Reachable records.
--   expected_next: Offset that the next record would have.
--   previous_last: Last offset of the segment before it that has records.
--   seam: How it joins: first, contiguous, compacted, gap, overlap, empty or unknown.
--   missing_offsets: Offsets between previous_last and first_offset.
--   unreachable_records: Complete records behind damage.
create table segments (
    file_id integer primary key references files (file_id),
    topic any not null,
    partition any not null,
    base_offset any not null,
    active integer not null,
    deleted integer not null,
    compacted integer not null,
    size integer not null,
    ends text not null,
    end_position integer not null,
    first_offset any,
    last_offset any,
    record_count integer not null,
    expected_next any not null,
    previous_last any,
    seam text not null,
    missing_offsets any not null,
    unreachable_records integer not null
) strict;

-- table unreachable_runs: Runs of complete frames behind damage; evidence, never state.
--   records: Frames in the run.
create table unreachable_runs (
    file_id integer not null references files (file_id),
    position integer not null,
    length integer not null,
    records integer not null,
    first_offset any not null,
    last_offset any not null,
    primary key (file_id, position)
) strict, without rowid;

-- table segment_sums: Sums over the records of each segment, reachable or not.
--   records: Records.
--   bytes: Bytes of their frames.
--   payload_bytes: Bytes of their payloads.
--   largest_bytes: Bytes of the largest frame.
--   keyed: Records with a key.
--   transactional: Records with a transactional id.
--   control: Commit and abort markers.
--   unreachable: Records behind damage.
create table segment_sums (
    file_id integer primary key references files (file_id),
    records integer not null,
    bytes integer not null,
    payload_bytes integer not null,
    largest_bytes integer not null,
    keyed integer not null,
    transactional integer not null,
    control integer not null,
    unreachable integer not null
) strict;

-- table largest_records: The hundred largest records of the directory.
--   rank: 1 for the largest.
--   record_offset: Offset of the record.
--   payload_bytes: Bytes of its payload.
create table largest_records (
    rank integer primary key,
    file_id integer not null references files (file_id),
    position integer not null,
    length integer not null,
    topic any not null,
    partition any not null,
    record_offset any not null,
    payload_bytes integer not null
) strict;

-- table index_findings: Entries of sparse indexes that do not fit their log.
--   index_finding_id: Place in the order of findings.
create table index_findings (
    index_finding_id integer primary key,
    file_id integer references files (file_id),
    position integer,
    length integer,
    code text not null,
    effect text not null,
    message any not null
) strict;

-- table record_shapes: What many records have in common; record_rows points here.
--   shape_id: Number of the combination.
--   topic: Topic in the record, when it is not that of the path.
--   partition: Partition in the record, when it is not that of the path.
--   epoch: Producer epoch.
--   event_type: Event type.
--   schema_version: Schema version.
--   transaction_state: open, committed or aborted.
--   transaction_marker: commit or abort.
--   control_type: transaction for control records.
--   control_version: Version of the control record.
--   control_coordinator_epoch: Epoch of the coordinator that wrote it.
--   reachable: 0 behind damage.
create table record_shapes (
    shape_id integer primary key,
    topic any,
    partition any,
    producer any,
    epoch integer not null,
    event_type any,
    schema_version integer not null,
    transactional_id any,
    transaction_state any,
    transaction_marker any,
    control_type any,
    control_version integer not null,
    control_coordinator_epoch integer not null,
    reachable integer not null
) strict;

-- table record_rows: Records, one narrow row each; read them through the view records.
--   shape_id: Number of the combination in record_shapes.
--   record_offset: Offset of the record.
--   sequence: Sequence of the producer; null for 0.
--   aggregate_version: Version of the aggregate; null for 0.
--   key: Key; null for none.
--   payload_bytes: Bytes of the payload.
--   payload: First bytes of the payload, with --payload-bytes.
create table record_rows (
    file_id integer not null,
    position integer not null,
    length integer not null,
    shape_id integer not null,
    record_offset any not null,
    sequence any,
    aggregate_version any,
    key any,
    payload_bytes integer not null,
    payload blob,
    primary key (file_id, position)
) strict, without rowid;

-- table kept_scans: What the scan of each log found, for `build --update`; no evidence of its own.
--   state: Findings and sums of the scan, as a JSON object.
create table kept_scans (
    file_id integer primary key,
    state text not null
) strict;

-- table kept_batches: What a start needs of the records of each log, for `build --update`.
--   batch: Place in the order of the log.
--   data: Runs, markers and events (inspect_db/load/kept.py).
create table kept_batches (
    file_id integer not null,
    batch integer not null,
    data blob not null,
    primary key (file_id, batch)
) strict, without rowid;
