-- title: Aggregates with version gaps
-- question: Which aggregates of event-sourcing topics skip versions?
-- how to read: expected was due, found stands there: events between are missing.
select
    g.topic,
    g.partition,
    g.key,
    g.expected,
    g.found,
    f.path,
    g.position
from aggregate_gaps as g
left join files as f on f.file_id = g.file_id
order by g.topic, g.partition, g.gap_id
