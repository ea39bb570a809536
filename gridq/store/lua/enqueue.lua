-- Put a submitted job into the inbox, where it is looked at until a router has admitted it.
-- ARGV  job, agent, deadline in ms from now, result TTL in ms, celery ('1' or ''), stream ('1' or ''), graph, input, options,
--       id of its API key or ''
-- gives 1 stored | 0 the job is known already (the same id again is no second job) | why its key does not do, nothing stored
-- TTL   sub:<job> and fin:<job> live to the deadline + an hour and to the result's TTL
local job = ARGV[1]
local known = C('EXISTS', K .. 'fin:' .. job) == 1
-- A job that came by the other door is waited for through Celery from now on.
if ARGV[5] == '1' then
  if known then C('ZADD', K .. 'answers', NOW, job) end
  for _, key in ipairs({K .. 'sub:' .. job, jobkey(job)}) do if C('EXISTS', key) == 1 then C('HSET', key, 'celery', 1) end end
end
if known then
  unlink(ARGV[8])  -- the caller has just written a value that nobody will read
  return 0
end
if C('EXISTS', K .. 'sub:' .. job, jobkey(job)) > 0 then return 0 end
local fault = key_fault(ARGV[10], ARGV[2])
if fault then
  unlink(ARGV[8])
  return fault
end
local sub = K .. 'sub:' .. job
C('HSET', sub, 'agent', ARGV[2], 'dl', NOW + ARGV[3], 'ttl', ARGV[4], 'graph', ARGV[7], 'in', ARGV[8], 'options', ARGV[9],
  'at', NOW)
if ARGV[5] == '1' then C('HSET', sub, 'celery', 1) end
if ARGV[10] ~= '' then C('HSET', sub, 'key', ARGV[10]) end
if ARGV[6] == '1' then C('HSET', sub, 'stream', 1) end
C('PEXPIRE', sub, ARGV[3] + 3600000)
C('ZADD', K .. 'deadlines', NOW + ARGV[3], job)
C('ZADD', K .. 'inbox', NOW + 2000, job)
C('ZADD', K .. 'jobs', 'NX', NOW, job)
return 1
