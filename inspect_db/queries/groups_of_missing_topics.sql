-- title: Groups of topics that are not declared
-- question: Which groups consume a topic that the manifest does not know?
-- how to read: Such a group blocks a new topic of that name until it is cleaned up.
select
    grp as group_name,
    topic,
    epoch
from check_q9
order by grp
