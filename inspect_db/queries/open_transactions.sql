-- title: Open and committing transactions
-- question: Which transactions are not decided, or decided and not finished?
-- how to read: committing: a start finishes it by writing what is missing. open: nothing of it
--   stands in a log; it is aborted when its time is over.
select
    transactional_id,
    producer,
    epoch,
    state,
    created_at,
    updated_at,
    staged_records,
    staged_offsets,
    partitions,
    partitions_without_marker
from open_transactions
order by transactional_id
