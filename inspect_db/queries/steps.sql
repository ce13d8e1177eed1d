-- title: The five steps of a start
-- question: How far would a start get?
-- how to read: The first step that refuses is the end; later ones are judged all the same.
select
    s.step,
    s.name,
    s.outcome,
    (
        select count(*)
        from findings as f
        where f.step = s.step
          and f.severity = 'error'
    ) as errors,
    (
        select count(*)
        from findings as f
        where f.step = s.step
          and f.severity = 'warning'
    ) as warnings
from recovery_steps as s
order by s.step
