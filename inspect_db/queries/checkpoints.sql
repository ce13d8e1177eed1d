-- title: Checkpoints against logs
-- question: Which checkpoints do not agree with their log or the manifest?
-- how to read: difference below 0: the checkpoint lags, a start raises it. Above 0: the log lost
--   its end. present 0: a start makes it anew.
select
    path,
    kind,
    topic,
    partition,
    present,
    stored,
    actual,
    difference
from checkpoints
where kind <> 'producers'
  and (present = 0 or stored is null or difference <> 0)
order by path
