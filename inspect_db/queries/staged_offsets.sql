-- title: Offsets staged in transactions
-- question: Which consumer offsets would the open transactions commit?
-- how to read: committed_offset is where the group stands now; a commit never moves it back.
select
    o.transactional_id,
    t.state,
    o.group_name,
    o.topic,
    o.partition,
    o.item_offset as staged_offset,
    c.committed_offset
from transaction_offsets as o
join transactions as t on t.transactional_id = o.transactional_id
left join replayed_offsets as c
    on c.group_name = o.group_name
   and c.topic = o.topic
   and c.partition = o.partition
where t.state in ('open', 'committing')
order by o.transactional_id, o.item
