-- Put the operator's limits in force, instead of those before: for agents, teams and live seats at once, for other seats when they
-- register.
--
-- ARGS
--   digest     digest of the quotas file, '' to lift all limits
--   about      where the limits come from, as JSON
--   fields...  field, value, … of the hash `limits`:
--              a:<agent>    team money jobs
--              t:<team>     money jobs
--              s:<seat>     requests-a-minute owner meter …
--              m:<account>  meter …
--              q:<queue>    stages policy
--              models       the aliases of models, as JSON
--              q            number of bounded queues
--              '-' means none; a meter is resource/window/limit
-- RETURNS  1 | an error SCHEMA
-- TTL      limits and meters live until the limits are lifted
local schema_error = check_schema(C('GET', K .. 'schema'))
if schema_error then return schema_error end
C('DEL', K .. 'limits')
if digest ~= '' then
  C('HSET', K .. 'limits', 'digest', digest, 'about', about, 'seen_at', NOW)
  for i = fields_at, #ARGV, 2000 do C('HSET', K .. 'limits', unpack(ARGV, i, math.min(i + 1999, #ARGV))) end
end
set_shared_budgets()
for _, seat in ipairs(C('ZRANGE', K .. 'seats', 0, -1)) do set_seat_limits(seat) end
unpark_due()
park_agents()
wake_queues(table.concat(C('SMEMBERS', K .. 'queues'), ' '))
return 1
