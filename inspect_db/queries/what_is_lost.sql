-- title: What is lost
-- question: What is lost or at stake, file by file?
-- how to read: Null means that it is not known. refuses and unknown: at stake, not yet lost.
select
    code,
    effect,
    path,
    position,
    lost_bytes,
    lost_records,
    lost_first_offset,
    lost_last_offset
from findings
where effect in ('refuses', 'unknown', 'data_missing', 'repairs')
  and (
        lost_bytes is not null
        or lost_records is not null
        or lost_first_offset is not null
    )
order by finding_id
