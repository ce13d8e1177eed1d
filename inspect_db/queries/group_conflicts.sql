-- title: Records of groups that contradict each other
-- question: Which records of groups make a broker refuse, and why?
-- how to read: One line a rejected record; the first one in the list of findings is named by a broker.
select
    r.code,
    l.group_name,
    l.epoch,
    f.path,
    r.position,
    r.log_partition,
    r.log_offset
from consumer_records as r
join files as f on f.file_id = r.file_id
left join (
    select file_id, position, group_name, epoch from lifecycle_records
    union all
    select file_id, position, group_name, epoch from offset_snapshots
) as l on l.file_id = r.file_id and l.position = r.position
where r.disposition = 'rejected'
order by r.log_partition, r.log_offset, r.position
