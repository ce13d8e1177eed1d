-- title: Producers that only a checkpoint knows
-- question: Which producers would be forgotten without the checkpoint?
-- how to read: Their records are gone by retention; without the file a repeated record is accepted.
select
    topic,
    partition,
    producer,
    checkpoint_epoch,
    checkpoint_sequence
from producer_states
where log_sequence is null
  and checkpoint_sequence is not null
order by topic, partition, producer
