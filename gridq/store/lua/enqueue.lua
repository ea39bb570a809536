-- Put a job into the inbox, where sweeps look after it until a router has admitted it.
--
-- ARGS
--   job               id of the job
--   agent             the agent that submits it
--   deadline_ms       time from now to its deadline
--   result_ttl_ms     how long its result is kept
--   celery            '1' if Celery waits for its answer
--   stream            '' no stream, '1' pieces and the end, 'e' only the end
--   graph             the graph as JSON
--   input             the input as JSON, or '@name' of a value that was written before
--   options           the job options as JSON
--   api_key           id of its API key, or ''
--   idempotency_key   '<agent>:<digest>', or ''
--   body_digest       digest of the request body, or ''
--   queue_timeout_ms  how long it may stay here, and each of its stages may wait for a seat, or ''
-- RETURNS  {ok} stored | {known} the job exists | {key, why} | {same, the job of the idempotency key} |
--          {conflict, the job with this id or key and another body} | an error SCHEMA or FULL (lib/preconditions.lua)
-- TTL      submitted:<job> and idempotency:<key> live to the deadline + 1 h; with the job's end, to its result's TTL
local function refuse(reply)
  unlink_value(input)
  return reply
end
local schema_error, memory_error = check_gate()
if schema_error then return refuse(schema_error) end
local submitted = K .. 'submitted:' .. job

-- Celery waits for the answer of a job that was submitted without it before.
local function add_celery(id)
  if celery == '' then return end
  if C('EXISTS', K .. 'result:' .. id) == 1 then C('ZADD', K .. 'answers', NOW, id) end
  for _, key in ipairs({K .. 'submitted:' .. id, job_key(id)}) do if C('EXISTS', key) == 1 then C('HSET', key, 'celery', 1) end end
end

if C('EXISTS', K .. 'result:' .. job, submitted, job_key(job)) > 0 then
  -- The caller has just written a value that nobody will read, unless this repeats a call whose reply was lost.
  if C('HGET', submitted, 'input') ~= input and C('HGET', job_key(job), 'input') ~= input then unlink_value(input) end
  if has_other_body(job, body_digest) then return {'conflict', job} end
  add_celery(job)
  return {'known'}
end
local fault = check_api_key(api_key, agent)
if fault then return refuse({'key', fault}) end
local first, differs = find_by_key(idempotency_key, body_digest)
if first then
  if not differs then add_celery(first) end
  return refuse({differs and 'conflict' or 'same', first})
end
if memory_error then return refuse(memory_error) end
local life_ms = deadline_ms + 3600000
C('HSET', submitted, 'agent', agent, 'deadline', NOW + deadline_ms, 'result_ttl', result_ttl_ms, 'graph', graph, 'input', input,
  'options', options, 'submitted_at', NOW)
if celery ~= '' then C('HSET', submitted, 'celery', 1) end
if api_key ~= '' then C('HSET', submitted, 'api_key', api_key) end
if stream ~= '' then C('HSET', submitted, 'stream', stream) end
if body_digest ~= '' then C('HSET', submitted, 'body_digest', body_digest) end
if queue_timeout_ms ~= '' then
  C('HSET', submitted, 'queue_timeout', queue_timeout_ms)
  C('ZADD', K .. 'delays', NOW + queue_timeout_ms, 'inbox_timeout:' .. job .. ':0:0')
end
if idempotency_key ~= '' then
  C('HSET', submitted, 'idempotency_key', idempotency_key)
  C('SET', K .. 'idempotency:' .. idempotency_key, job .. ' ' .. body_digest, 'PX', life_ms)
end
C('PEXPIRE', submitted, life_ms)
C('ZADD', K .. 'deadlines', NOW + deadline_ms, job)
C('ZADD', K .. 'inbox', NOW + 2000, job)
C('ZADD', K .. 'jobs', 'NX', NOW, job)
return {'ok'}
