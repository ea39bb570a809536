-- Record a stage's output: check the fence, link the output, settle the hold, close the lease, find what became ready, ring;
-- then, in the same call, take the slot's next stage.
-- ARGV  lease, output (a value, or '@name' of a value written before), what it used ('micro-dollars,tokens in,tokens out'), rows as JSON, seat, incarnation,
--       slot, nonce of the next claim, '1' take the next | '0' leave, what monitors are told of it as JSON or ''
-- gives {1 recorded | 0 recorded before | -1 fenced off | -2 the value is not there, '' | plain | celery (the job ended), next}
-- A lapsed lease still counts while nobody else has claimed the stage: a paid call is not thrown away.
local lease, output, used, rows, seat, inc, slot, nonce, goon, told = unpack(ARGV)
local job, step, rest = parse(lease)
local j = jobkey(job)
local f = C('HMGET', j, 'lease:' .. step, 'done:' .. step, 'answer', 'steps', 'header:' .. step, 'arm:' .. step .. ':1', 'arm:' .. step .. ':0',
  'charged_team', 'agent', 'unfinished', 'budget', 'started_at:' .. step)
local micro, tokens_in, tokens_out = usage(used)
local result, ended, pure, later = 1, '', {}, {}
if f[1] ~= rest then
  local by, names = free(lease)
  local of = attempt_of(f[9], f[5])
  local charged = settle(lease, by, used, 'late', of, names)  -- a late attempt is the seat's waste, never the agent's
  if by then remember(lease, by, used, of, names) end
  local ended_by_it = not f[4] and not charged  -- the job is gone, and this lease was not taken from its seat
  result = (f[2] == rest or ended_by_it) and 0 or -1
  if string.sub(output, 1, 1) == '@' and f[2] ~= rest then  -- the caller has just written a value that nobody will read
    local fin = K .. 'result:' .. job
    if C('LINDEX', fin, 0) ~= 'done\n' .. output then unlink(output)
    else C('PEXPIRE', K .. 'value:' .. string.sub(output, 2), C('PTTL', fin)) end
  end
elseif string.sub(output, 1, 1) == '@' and C('EXISTS', K .. 'value:' .. string.sub(output, 2)) == 0 then
  return {-2, '', {'none'}}
else
  local by, names = free(lease)
  local pays = f[8] and micro + tokens_in + tokens_out > 0
  if pays then pay(f[9], f[8], micro, tokens_in + tokens_out) end
  settle(lease, by, used, 'done', attempt_of(f[9], f[5], f[12], f[8]), names)
  if not by then recall(job, step, rest); C('DEL', K .. 'closed_lease:' .. lease) end
  if pays then
    local all = spend(job, f[9], f[8], micro, tokens_in + tokens_out)
    if over(f[9], f[8]) then park(f[9], f[8]) end
    if all then park_all(f[8]) end
  end
  local left = tonumber(f[10]) - 1
  local rest_of_budget = f[11] and micro > 0 and C('HINCRBY', j, 'budget', whole(-micro)) or 0
  local first = C('RPUSH', K .. 'rows:' .. job, rows) == 1
  if string.sub(output, 1, 1) == '@' then
    C('SADD', K .. 'values:' .. job, string.sub(output, 2))
    C('PEXPIRE', K .. 'values:' .. job, C('PTTL', j))
  end
  if told ~= '' then publish(told) end
  if left > 0 and rest_of_budget < 0 then
    ended = finish(job, 'failed', over_budget(header(job, step, f[5]).path, -rest_of_budget), left)
  elseif left > 0 then  -- with the last step the job's own keys go, so nothing is noted in them
    if first then C('PEXPIRE', K .. 'rows:' .. job, C('PTTL', j)) end
    C('HSET', j, 'output:' .. step, output, 'done:' .. step, rest, 'unfinished', left)
    C('HDEL', j, 'lease:' .. step)
    if f[6] then left = left - skip(job, output == 'true' and f[7] or f[6], pure, later) end
    release(job, header(job, step, f[5]).dependents, pure, later)
  end
  if left <= 0 then
    ended = finish(job, 'done', step == f[3] and output or C('HGET', j, 'output:' .. f[3]), 0)
    pure = {}
  end
end
local mine = goon == '1' and pure[1] and may(seat, inc, slot) and pure[1]
for i = mine and 2 or 1, #pure do push(job, pure[i], later) end
local after = {'none'}
if mine then after = take_pure(job, mine, seat, slot, nonce) elseif goon == '1' then after = take(seat, inc, slot, nonce) end
-- What became ready is rung for, but where this slot has taken a stage of the same queue: it needs no wake-up for one.
local taken = not mine and after[2] and string.match(after[3], '^%S+ %S+ %S+ %S+ (%S+)')
for _, to in ipairs(later) do
  if to[1] == taken then taken = nil else ring(unpack(to, 1, 7)) end
end
if goon == '1' then return {result, ended, after} end
local S = C('HMGET', K .. 'seat:' .. seat, 'queues', 'draining', 'incarnation')
if S[3] == inc and not S[2] and C('ZSCORE', K .. 'seats', seat) then idle(seat, S[1]) end  -- a late caller's may be gone
for q in words(S[1]) do if C('EXISTS', K .. 'classes:' .. q) == 1 then ring(q) end end
return {result, ended, {'none'}}
