-- Write a job's plan and make its first steps ready, all or nothing.
-- ARGV  job, agent, prio, deadline in ms from now ('' = the one the inbox knows), result TTL in ms, celery, stream ('', '1',
--       'e': its end alone), wait ('1' = accept without a live seat), input, answer step, steps, queues needed (space separated; of those with | between them one),
--       ready steps (space separated), the job's name, its session or '', the id of its API key or '' (the inbox knows its own), what it may cost in
--       micro-dollars, how many stages it has, its idempotency key as <agent>:<digest> or '', the digest of its body or '' (the
--       inbox knows its own), for how long a stage may stand ready in ms or '', field, value, …
-- gives {'ok', batch job that gave way to it …} | {'known'} the job is admitted or ended already, or will be; nothing was written:
--       {'noseat', queue …} | {'barred', queue, seat, whom that is lent to, …} | {'queue', queue, stages that stand there, most, needed} |
--       {'key', why} | {'quota', limit, name, used, held, limit, needed, end of the window or ''} | {'same', job that has the
--       idempotency key} | {'conflict', job that has the key, or the id, with another body} | an error SCHEMA or FULL (lib/gate.lua)
-- TTL   job:<job> and idem:<key> live to the deadline + an hour, the latter with the job's end to its result's TTL
local job, agent = ARGV[1], ARGV[2]
local j = jobkey(job)
local other, full = gate()
if other then
  unlink(ARGV[9])
  return other
end
local sub = K .. 'submitted:' .. job
local input, idem, body = ARGV[9], ARGV[19], ARGV[20]
if C('EXISTS', K .. 'result:' .. job, j) > 0 then
  C('ZREM', K .. 'inbox', job)
  if C('HGET', j, 'input') ~= input then unlink(input) end
  if other_body(job, body) then return {'conflict', job} end
  return {'known'}
end
local deadline = tonumber(ARGV[4])
if deadline then deadline = NOW + deadline end
local known = C('HMGET', sub, 'deadline', 'input', 'celery', 'api_key', 'idempotency_key', 'body_digest', 'queue_timeout', 'submitted_at')
if known[1] then
  if ARGV[4] ~= '' then  -- it came by the other door before: a router admits it, with the graph and the input it came with
    if known[2] ~= input then unlink(input) end
    if other_body(job, body) then return {'conflict', job} end
    return {'known'}
  end
  if known[7] and known[8] + known[7] <= NOW then return {'known'} end  -- it stood here for too long: the sweep ends it
  if tonumber(known[1]) <= NOW then return {'known'} end  -- its time is over: so too
  deadline, input, idem, body = tonumber(known[1]), known[2], known[5] or '', known[6] or ''
end
if not deadline then return {'known'} end  -- it has left the inbox and ended, so long ago that its answer is gone too
local function refuse(reply)
  if not known[1] then unlink(input) end
  return reply
end
local guarded = C('EXISTS', K .. 'limits', K .. 'api_keys', K .. 'lent_seats') > 0  -- a grid without them asks this and nothing more
local team = '-'
if guarded then
  local fault
  fault, team = key_fault(known[1] and (known[4] or '') or ARGV[16], agent)
  if fault then return refuse({'key', fault}) end
end
if not known[1] then
  local first, differs = keyed(idem, body)
  if first then return refuse({differs and 'conflict' or 'same', first}) end
end
if full then return refuse(full) end  -- what stands in the inbox waits there
if ARGV[8] ~= '1' then
  local none = {'noseat'}
  for links in words(ARGV[12]) do
    local served = false
    for q in string.gmatch(links, '[^|]+') do served = served or C('HEXISTS', K .. 'concurrency', q) == 1 end
    if not served then none[#none + 1] = links end
  end
  if none[2] then return refuse(none) end
  if guarded then
    --[
    local others = barred(ARGV[12], agent, team)
    if others then return refuse(others) end
    --]
  end
end
local gave_way = {}
if guarded and C('EXISTS', K .. 'limits') == 1 then
  --[
  local refusal, drops = refused_for_room(ARGV[13], 22, ARGV[3], agent, team)
  if refusal then return refuse(refusal) end
  team, refusal = promise(job, agent, team, tonumber(ARGV[17]), 22)
  if not team then return refuse(refusal) end
  C('HSET', j, 'charged_team', team)
  gave_way = make_room(drops)
  --]
end
local fields = {'agent', agent, 'priority', ARGV[3], 'deadline', deadline, 'result_ttl', ARGV[5], 'input', input, 'answer', ARGV[10], 'steps', ARGV[11],
  'unfinished', ARGV[11], 'submitted_at', NOW, 'name', ARGV[14]}
local function note(field, value) fields[#fields + 1], fields[#fields + 2] = field, value end
if ARGV[6] == '1' or known[3] then note('celery', 1) end
if ARGV[7] ~= '' then note('stream', ARGV[7]) end
if ARGV[15] ~= '' then note('session', ARGV[15]) end
if ARGV[21] ~= '' then note('queue_timeout', ARGV[21]) end
if body ~= '' then note('body_digest', body) end
if team ~= '-' then note('team', team) end
if idem ~= '' then
  note('idempotency_key', idem)
  C('SET', K .. 'idempotency:' .. idem, job .. ' ' .. body, 'PX', deadline - NOW + 3600000)
end
C('HSET', j, unpack(fields))
for i = 22, #ARGV, 2000 do C('HSET', j, unpack(ARGV, i, math.min(i + 1999, #ARGV))) end
C('PEXPIRE', j, deadline - NOW + 3600000)
C('ZADD', K .. 'deadlines', deadline, job)
C('ZADD', K .. 'jobs', 'NX', NOW, job)
if known[1] then
  C('UNLINK', sub)
  C('ZREM', K .. 'inbox', job)
  if known[7] then C('ZREM', K .. 'delays', 'inbox_timeout:' .. job .. ':0:0') end
end
if string.sub(input, 1, 1) == '@' then C('SADD', K .. 'values:' .. job, string.sub(input, 2)); C('PEXPIRE', K .. 'values:' .. job, deadline - NOW + 3600000) end
if watched() then publish(cjson.encode(beginning(job, ARGV[14], agent, ARGV[18]))) end
for s in words(ARGV[13]) do push(job, s) end
return {'ok', unpack(gave_way)}
