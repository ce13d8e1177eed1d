-- title: Files that changed under the reader
-- question: Does the index mix two moments?
-- how to read: Empty means no. Else stop the broker, or inspect a snapshot, and build again.
select
    path,
    kind,
    size
from files
where changed = 1
order by path
