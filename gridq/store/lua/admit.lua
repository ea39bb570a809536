-- Write a job's plan and make its first steps ready, all or nothing.
--
-- ARGS
--   job               id of the job
--   agent             the agent that submits it
--   priority          0 interactive, 1 batch
--   deadline_ms       time from now to its deadline, '' for the one in the inbox
--   result_ttl_ms     how long its result is kept
--   celery            '1' if Celery waits for its answer
--   stream            '' no stream, '1' pieces and the end, 'e' only the end
--   wait_for_seat     '1' to accept it without a live seat
--   input             the input as JSON, or '@name' of a value that was written before
--   answer            the step whose output is the job's answer
--   steps             number of steps
--   queues            queues that need a live seat, space separated; alternatives with | between them
--   ready             steps that are ready at once, space separated
--   groups            these steps by where they would wait, as JSON: {queue, cost, excluded seats, chain, the largest `tokens` if there is
--                     a chain, how many} …
--   name              name of the job
--   session           its session, or ''
--   api_key           id of its API key, or '' (the inbox knows its own)
--   micro_dollars     estimated cost
--   expected_use      estimated use: 'tokens gpu-ms', the latter as its stages declare it
--   stages            number of stages
--   idempotency_key   '<agent>:<digest>', or ''
--   body_digest       digest of the request body, or '' (the inbox knows its own)
--   queue_timeout_ms  how long a stage may wait for a seat, or ''
--   plan              name of a plan that stage_plan.lua has written, or ''
--   fields...         field, value, … of the job's record, those of the staged plan excepted
-- RETURNS  {ok, batch job that was dropped for it …} | {begun, …} the same, and advance.lua should go on with it | {known} the job is admitted or has ended, or a sweep will end it |
--          nothing was written: {unstaged} the staged plan has expired | {no_seat, queue …} | {not_lent, queue, seat, whom it is lent to, …} |
--          {queue, name, waiting stages, limit, needed, '1' a live seat could take them | '0'} | {key, why} |
--          {quota, limit, name, used, reserved, limit, needed, end of the window or '', window} |
--          {same, the job of the idempotency key} | {conflict, the job with this id or key and another body} |
--          an error SCHEMA or FULL (lib/preconditions.lua)
-- TTL      job:<job> and idempotency:<key> live to the deadline + 1 h; the latter, with the job's end, to its result's TTL
local j = job_key(job)
local function drop_plan(reply)
  if plan ~= '' then C('UNLINK', K .. 'plan:' .. plan) end
  return reply
end
local schema_error, memory_error = check_gate()
if schema_error then
  unlink_value(input)
  return drop_plan(schema_error)
end
local submitted = K .. 'submitted:' .. job
if C('EXISTS', K .. 'result:' .. job, j) > 0 then
  C('ZREM', K .. 'inbox', job)
  if C('HGET', j, 'input') ~= input then unlink_value(input) end
  if has_other_body(job, body_digest) then return drop_plan({'conflict', job}) end
  return drop_plan({'known'})
end
local deadline = tonumber(deadline_ms)
if deadline then deadline = NOW + deadline end
local inbox_deadline, inbox_input, inbox_celery, inbox_api_key, inbox_idempotency_key, inbox_body_digest, inbox_timeout, submitted_at =
  unpack(C('HMGET', submitted, 'deadline', 'input', 'celery', 'api_key', 'idempotency_key', 'body_digest', 'queue_timeout',
    'submitted_at'))
if inbox_deadline then
  if deadline_ms ~= '' then  -- it is in the inbox: a router admits it, with the graph and the input that came first
    if inbox_input ~= input then unlink_value(input) end
    if has_other_body(job, body_digest) then return drop_plan({'conflict', job}) end
    return drop_plan({'known'})
  end
  if inbox_timeout and submitted_at + inbox_timeout <= NOW then return drop_plan({'known'}) end  -- it waited here for too long: the sweep ends it
  if tonumber(inbox_deadline) <= NOW then return drop_plan({'known'}) end  -- its deadline has passed: likewise
  deadline, input, idempotency_key, body_digest = tonumber(inbox_deadline), inbox_input, inbox_idempotency_key or '',
    inbox_body_digest or ''
end
if plan ~= '' and C('EXISTS', K .. 'plan:' .. plan) == 0 then return {'unstaged'} end
if not deadline then return drop_plan({'known'}) end  -- it left the inbox and ended so long ago that its answer has expired
local function refuse(reply)
  if not inbox_deadline then unlink_value(input) end
  return drop_plan(reply)
end
local is_guarded = C('EXISTS', K .. 'limits', K .. 'api_keys', K .. 'lent_seats') > 0  -- one question for a grid without any of them
local team = '-'
if is_guarded then
  local fault
  if inbox_deadline then api_key = inbox_api_key or '' end
  fault, team = check_api_key(api_key, agent)
  if fault then return refuse({'key', fault}) end
end
if not inbox_deadline then
  local first, differs = find_by_key(idempotency_key, body_digest)
  if first then return refuse({differs and 'conflict' or 'same', first}) end
end
if memory_error then return refuse(memory_error) end  -- a job in the inbox waits there
if wait_for_seat ~= '1' then
  local no_seat = {'no_seat'}
  for links in words(queues) do
    local served = false
    for q in string.gmatch(links, '[^|]+') do served = served or C('HEXISTS', K .. 'concurrency', q) == 1 end
    if not served then no_seat[#no_seat + 1] = links end
  end
  if no_seat[2] then return refuse(no_seat) end
  if is_guarded then
    --[
    local not_lent = find_not_lent(queues, agent, team)
    if not_lent then return refuse(not_lent) end
    --]
  end
end
local dropped, charged_team = {}, nil
if is_guarded and C('EXISTS', K .. 'limits') == 1 then
  --[
  local refusal, drops = check_room(groups, priority, agent, team)
  if refusal then return refuse(refusal) end
  local tokens, gpu_ms = string.match(expected_use, '^(%d+) (%d+)$')
  team, refusal = reserve(job, agent, team,
    {money = tonumber(micro_dollars), tokens = tonumber(tokens), gpu_seconds = tonumber(gpu_ms)})
  if not team then return refuse(refusal) end
  charged_team = team
  dropped = make_room(drops)
  --]
end
local life_ms = deadline - NOW + 3600000
local record = {'agent', agent, 'priority', priority, 'deadline', deadline, 'result_ttl', result_ttl_ms, 'input', input,
  'answer', answer, 'steps', steps, 'unfinished', steps, 'submitted_at', NOW, 'name', name}
local function add(field, value) record[#record + 1], record[#record + 2] = field, value end
if celery == '1' or inbox_celery then add('celery', 1) end
if stream ~= '' then add('stream', stream) end
if session ~= '' then add('session', session) end
if queue_timeout_ms ~= '' then add('queue_timeout', queue_timeout_ms) end
if body_digest ~= '' then add('body_digest', body_digest) end
if team ~= '-' then add('team', team) end
if idempotency_key ~= '' then
  add('idempotency_key', idempotency_key)
  C('SET', K .. 'idempotency:' .. idempotency_key, job .. ' ' .. body_digest, 'PX', life_ms)
end
if charged_team then add('charged_team', charged_team) end
if plan ~= '' then C('RENAME', K .. 'plan:' .. plan, j) end
C('HSET', j, unpack(record))
for i = fields_at, #ARGV, 2000 do C('HSET', j, unpack(ARGV, i, math.min(i + 1999, #ARGV))) end
C('PEXPIRE', j, life_ms)
C('ZADD', K .. 'deadlines', deadline, job)
C('ZADD', K .. 'jobs', 'NX', NOW, job)
if inbox_deadline then
  C('UNLINK', submitted)
  C('ZREM', K .. 'inbox', job)
  if inbox_timeout then C('ZREM', K .. 'delays', 'inbox_timeout:' .. job .. ':0:0') end
end
if string.sub(input, 1, 1) == '@' then
  C('SADD', K .. 'values:' .. job, string.sub(input, 2))
  C('PEXPIRE', K .. 'values:' .. job, life_ms)
end
if monitoring_router() then publish(cjson.encode(start_events(job, name, agent, stages))) end
if ready ~= '' then do_work(job, nil, {{'ready', 1, list = ready}}) end
return {work_left and 'begun' or 'ok', unpack(dropped)}
