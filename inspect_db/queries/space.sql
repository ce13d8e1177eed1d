-- title: Space by topic and class
-- question: Where do the bytes go?
-- how to read: Largest first; files outside of topic directories have no topic.
select
    topic,
    class,
    kind,
    count(*) as files,
    sum(size) as bytes
from files
where type = 'file'
group by topic, class, kind
order by bytes desc, topic, kind
