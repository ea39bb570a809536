-- Put the operator's limits in force, instead of those before. Accounts and live seats that have meters get theirs at once, of thousands of
-- them some in further calls (lib/parked_agents.lua); other seats when they register.
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
-- RETURNS  1 | 2 if advance.lua should go on | an error SCHEMA
-- TTL      limits and meters live until the limits are lifted
local schema_error = check_schema(C('GET', K .. 'schema'))
if schema_error then return schema_error end
C('DEL', K .. 'limits')
if digest ~= '' then
  C('HSET', K .. 'limits', 'digest', digest, 'about', about, 'seen_at', NOW)
  for i = fields_at, #ARGV, 2000 do C('HSET', K .. 'limits', unpack(ARGV, i, math.min(i + 1999, #ARGV))) end
end
for i = fields_at, #ARGV, 2 do
  local name = string.match(ARGV[i], '^m:(.*)$')
  if name and not string.find(name, '^[at]:') then apply_account_limits(name, ARGV[i + 1], C('HGET', K .. 'meters', name)) end
end
C('DEL', K .. 'limits_work')
leave_limits_work('stale * 0', 'accounts * 0', 'seats * 0', 'unpark * 0', 'queues * 0')
return advance_limits() and 1 or 2
