-- title: History of a transactional id
-- question: Which states did the journal record for a transactional id?
-- how to read: One line a frame, oldest first. salvage 1: behind a problem, no broker sees it.
-- parameter id: Transactional id; all of them without it.
select
    position,
    transactional_id,
    epoch,
    revision,
    state,
    kind,
    updated_at,
    salvage
from journal_frames
where :id is null
   or transactional_id = :id
order by position
