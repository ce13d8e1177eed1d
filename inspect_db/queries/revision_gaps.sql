-- title: Missing revisions
-- question: Which revisions are missing, and does compaction explain it?
-- how to read: explained 1: a compacted segment holds this stretch of the log, which keeps
--   the newest record of each key only. explained 0: records may be lost.
-- parameter group: Name of the group; all groups without it.
select
    q.grp as group_name,
    q.topic,
    q.epoch,
    q.after_revision,
    q.revision,
    exists (
        select 1
        from segments as g
        where g.topic = '__consumer_offsets'
          and g.partition = s.log_partition
          and g.compacted = 1
          and g.base_offset <= s.log_offset
    ) as explained,
    f.path,
    q.position
from check_q10 as q
join offset_snapshots as s on s.file_id = q.file_id and s.position = q.position
join files as f on f.file_id = q.file_id
where :group is null
   or q.grp = :group
order by explained, q.grp, q.topic, q.epoch, q.revision
