-- title: Records behind damage
-- question: What could be found again behind damage?
-- how to read: Runs of complete frames that no broker reaches; a cut at the damage would lose them.
select
    f.path,
    s.end_position as damage_at,
    u.position,
    u.length,
    u.records,
    u.first_offset,
    u.last_offset
from unreachable_runs as u
join segments as s on s.file_id = u.file_id
join files as f on f.file_id = u.file_id
order by f.path, u.position
