-- title: Declared topics without storage
-- question: Which declared topics lack partitions on disk?
-- how to read: storage_partitions below partitions: a broker refuses to start.
select
    topic,
    partitions,
    storage_partitions
from declared_without_storage
order by topic
