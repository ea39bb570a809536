-- Put the operator's limits in force, in place of those before: for agents and teams at once, for live seats at once, for others
-- when they register.
-- ARGV  digest ('' = no limits at all), what is told of them as JSON, field, value … ('a:<agent>' team money jobs | 't:<team>'
--       money jobs | 's:<seat>' requests-a-minute owner meter … | 'm:<bearer>' meter … | 'q:<queue>' stages policy; '-' = none; a meter:
--       thing/window/limit; 'q' how many queues)
-- gives 1 | an error SCHEMA
-- TTL   limits lives until it is lifted, meters with it
local other = other_schema(C('GET', K .. 'schema'))
if other then return other end
C('DEL', K .. 'limits')
if ARGV[1] ~= '' then
  C('HSET', K .. 'limits', 'digest', ARGV[1], 'about', ARGV[2], 'seen_at', NOW)
  for i = 3, #ARGV, 2000 do C('HSET', K .. 'limits', unpack(ARGV, i, math.min(i + 1999, #ARGV))) end
end
set_shared()
for _, seat in ipairs(C('ZRANGE', K .. 'seats', 0, -1)) do set_limits(seat) end
unpark_due()
park_all()
for _, q in ipairs(C('SMEMBERS', K .. 'queues')) do if C('EXISTS', K .. 'classes:' .. q) == 1 then ring(q) end end
return 1
