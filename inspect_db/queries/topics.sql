-- title: Topics
-- question: Which topics are declared, and with which policies?
-- how to read: declared 0 with a directory is an orphan; state reset_pending refuses to start.
select
    topic,
    declared,
    directory,
    state,
    partitions,
    storage_partitions,
    lifecycle_epoch,
    cleanup_policy,
    retention_hours,
    retention_bytes,
    idempotent,
    event_sourcing
from topics
order by topic
