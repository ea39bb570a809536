-- Put a submitted job into the inbox, where it is looked at until a router has admitted it.
-- ARGV  job, agent, deadline in ms from now, result TTL in ms, celery ('1' or ''), stream ('', '1', 'e': its end alone), graph, input, options,
--       id of its API key or '', its idempotency key as <agent>:<digest> or '', the digest of its body or '',
--       for how long it may stand here, and a stage of it ready, in ms or ''
-- gives 1 stored | 0 the job is known already (the same id again is no second job); nothing stored: {why its key does not do} |
--       {'same', job that has the idempotency key} | {'conflict', job that has the key, or the id, with another body} | an error
--       SCHEMA or FULL (lib/gate.lua)
-- TTL   sub:<job> and idem:<key> live to the deadline + an hour, with the job's end to its result's TTL
local job, celery, value, idem, body = ARGV[1], ARGV[5] == '1', ARGV[8], ARGV[11], ARGV[12]
local other, full = gate()
if other then
  unlink(value)
  return other
end
local sub = K .. 'submitted:' .. job

-- A job that came by the other door is waited for through Celery from now on.
local function await(id)
  if not celery then return end
  if C('EXISTS', K .. 'result:' .. id) == 1 then C('ZADD', K .. 'answers', NOW, id) end
  for _, key in ipairs({K .. 'submitted:' .. id, jobkey(id)}) do if C('EXISTS', key) == 1 then C('HSET', key, 'celery', 1) end end
end

if C('EXISTS', K .. 'result:' .. job, sub, jobkey(job)) > 0 then
  -- The caller has just written a value that nobody will read, but where the first call's reply was lost.
  if C('HGET', sub, 'input') ~= value and C('HGET', jobkey(job), 'input') ~= value then unlink(value) end
  if other_body(job, body) then return {'conflict', job} end
  await(job)
  return 0
end
local fault = key_fault(ARGV[10], ARGV[2])
if fault then
  unlink(value)
  return {fault}
end
local first, differs = keyed(idem, body)
if first then
  unlink(value)
  if differs then return {'conflict', first} end
  await(first)
  return {'same', first}
end
if full then
  unlink(value)
  return full
end
C('HSET', sub, 'agent', ARGV[2], 'deadline', NOW + ARGV[3], 'result_ttl', ARGV[4], 'graph', ARGV[7], 'input', ARGV[8], 'options', ARGV[9],
  'submitted_at', NOW)
if celery then C('HSET', sub, 'celery', 1) end
if ARGV[10] ~= '' then C('HSET', sub, 'api_key', ARGV[10]) end
if ARGV[6] ~= '' then C('HSET', sub, 'stream', ARGV[6]) end
if body ~= '' then C('HSET', sub, 'body_digest', body) end
if ARGV[13] ~= '' then
  C('HSET', sub, 'queue_timeout', ARGV[13])
  C('ZADD', K .. 'delays', NOW + ARGV[13], 'inbox_timeout:' .. job .. ':0:0')
end
if idem ~= '' then
  C('HSET', sub, 'idempotency_key', idem)
  C('SET', K .. 'idempotency:' .. idem, job .. ' ' .. body, 'PX', ARGV[3] + 3600000)
end
C('PEXPIRE', sub, ARGV[3] + 3600000)
C('ZADD', K .. 'deadlines', NOW + ARGV[3], job)
C('ZADD', K .. 'inbox', NOW + 2000, job)
C('ZADD', K .. 'jobs', 'NX', NOW, job)
return 1
