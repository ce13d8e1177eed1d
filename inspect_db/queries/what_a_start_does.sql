-- title: What a start would do
-- question: Which changes would a start make, action by action?
-- how to read: In the order of a start. Empty when it refuses: then it changes nothing.
select
    action_id,
    step,
    kind,
    path,
    position,
    message
from recovery_actions
order by action_id
