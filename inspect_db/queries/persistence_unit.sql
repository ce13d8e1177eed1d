-- title: Files of the persistence unit
-- question: Which files belong together and must be saved and restored as one?
-- how to read: needed 1: cannot be rebuilt. A backup of less than all of them is no backup.
select
    path,
    kind,
    class,
    needed,
    size
from persistence_unit
order by path
