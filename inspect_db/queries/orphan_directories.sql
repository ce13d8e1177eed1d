-- title: Orphan directories
-- question: Which directories hold logs that the manifest does not declare?
-- how to read: A broker refuses to start on them. cursus-storage orphan archive moves them away.
--   Empty when no topic manifest can be read: then nothing is known to be undeclared.
select
    topic,
    storage_partitions,
    files,
    bytes
from orphan_directories
order by topic
