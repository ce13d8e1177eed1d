-- title: Files that do not belong to the persistence unit
-- question: What else stands in the log directory?
-- how to read: Temporary files and locks come from brokers; foreign ones from other releases or people.
select
    path,
    type,
    kind,
    class,
    size
from files
where class in ('temporary', 'lock', 'foreign')
   or (type not in ('file', 'directory'))
order by class, path
