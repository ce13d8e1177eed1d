-- title: Transactions whose partitions lack a marker
-- question: In which partitions does the marker of an undecided or unfinished transaction miss?
-- how to read: Committed readers of these partitions stop at first_open_offset, where there is one.
select
    p.transactional_id,
    p.epoch,
    t.state,
    p.topic,
    p.partition,
    p.staged_records,
    p.open_records,
    p.first_open_offset
from transaction_partitions as p
left join transactions as t
    on t.transactional_id = p.transactional_id
   and t.epoch = p.epoch
where p.marker is null
  and (p.open_records > 0 or t.state in ('open', 'committing'))
order by p.transactional_id, p.epoch, p.topic, p.partition
