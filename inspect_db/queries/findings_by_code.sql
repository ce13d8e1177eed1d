-- title: Findings by code
-- question: What was found, how often, and what is to be done?
-- how to read: Worst effect first.
select
    f.code,
    f.severity,
    f.effect,
    count(*) as times,
    c.meaning,
    c.action
from findings as f
join finding_codes as c on c.code = f.code
group by f.code, f.severity, f.effect
order by
    case f.effect
        when 'refuses' then 1
        when 'unknown' then 2
        when 'data_missing' then 3
        when 'repairs' then 4
        when 'recovers' then 5
        else 6
    end,
    f.severity,
    f.code
