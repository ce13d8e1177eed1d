-- title: Groups of topics that are not declared
-- question: Which groups consume a topic that the manifest does not know?
-- how to read: Such a group blocks a new topic of that name until it is cleaned up.
--   Empty when no topic manifest can be read: then nothing is known to be missing.
select
    grp as group_name,
    topic,
    epoch
from check_q9
where exists (
    select 1
    from topics as t
    where t.declared = 1
)
order by grp
