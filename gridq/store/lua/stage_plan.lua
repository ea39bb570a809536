-- Write a part of a large plan where admit.lua finds it. Nothing reads it before, and without admission it expires.
--
-- ARGS
--   plan       name of the plan
--   fields...  field, value, … of the job's record
-- RETURNS  how many fields the plan has now
-- TTL      plan:<plan> lives for ten minutes after its last part
local key = K .. 'plan:' .. plan
for i = fields_at, #ARGV, 2000 do C('HSET', key, unpack(ARGV, i, math.min(i + 1999, #ARGV))) end
C('PEXPIRE', key, 600000)
return C('HLEN', key)
