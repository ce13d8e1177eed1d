-- title: Index entries against logs
-- question: Which entries of sparse indexes do not fit their log?
-- how to read: An index can never make data invalid; a start repairs the active one.
select
    f.path,
    i.position,
    i.code,
    i.effect,
    i.message
from index_findings as i
left join files as f on f.file_id = i.file_id
order by i.index_finding_id
