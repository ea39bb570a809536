-- The life of a job: leases closed, steps finished, skipped, failed, reset; the end.

-- Close a lease: the slot comes back, and what it held. Returns the seat, nil where the lease was not open, and the names of the
-- shared sheets under which it was claimed, nil where nothing bound its seat then.
local function close_lease(lease)
  if C('ZREM', K .. 'leases', lease) == 0 then return nil end
  local seat, slot, money, tokens, requests, names = string.match(C('HGET', K .. 'lease_info', lease), '^(%S+) (%S+) (%d+) ?(%d*) ?(%d*) ?(%S*)$')
  names = names ~= '' and names or nil
  if names then release_reserved(seat, tonumber(money), tonumber(tokens), tonumber(requests), names) end
  C('HDEL', K .. 'lease_info', lease)
  if C('HGET', K .. 'slots:' .. seat, slot) == lease then C('HDEL', K .. 'slots:' .. seat, slot) end
  return seat, names
end

-- What an attempt used, as its worker says it: 'micro-dollars,tokens in,tokens out', or the first alone; without the first it has no
-- price. '-': nothing is known. Gives three numbers, and whether it has a price.
local function parse_usage(text)
  local micro, tokens_in, tokens_out = string.match(text, '^(%d*),?(%d*),?(%d*)$')
  return tonumber(micro) or 0, tonumber(tokens_in) or 0, tonumber(tokens_out) or 0, tonumber(micro) ~= nil
end

-- What the ledger says of a step's attempt: its agent, its queue, since when it was claimed; from the job's fields agent, h:<step> and
-- st:<step>, false where the job is gone. `team`: where limits count what it used.
local function describe_attempt(agent, h, since, team)
  return {agent = agent or nil, q = h and string.match(h, '^%S+') or nil, since = since or nil, team = team or nil}
end

-- Charge an attempt to its seat, and enter it in the ledger. Of built-in stages and one's own code, of which there are many and which
-- cost nothing, only those are entered that used something all the same. `names`: as free gives them. It is a request of the seat's,
-- once, unless it was handed back without having used anything.
local function record_attempt(what, lease, seat, of, micro, tokens_in, tokens_out, priced, names, again)
  local used = micro + tokens_in + tokens_out > 0
  if not used and (not of.q or is_free(of.q)) then return end
  local request = names and not again and of.q and not is_free(of.q) and (used or what ~= 'back') and 1 or 0
  charge_budgets(seat, names, micro, tokens_in + tokens_out, request)
  local job, step, attempt = string.match(lease, '^([^:]+):(%d+):%d+:(%d+)')
  local month = of.team and micro > 0 and current_window('month') or ''
  append_ledger(ledger_entry(what, job, step, attempt, seat, of.agent or '', of.team or '', of.q or '', priced and int_text(micro) or '',
    int_text(tokens_in), int_text(tokens_out), of.since and NOW - of.since or '', month) .. ' ' .. (names or '') .. ' ' .. request)
end

-- A lease that ended without a completion is remembered with what was charged for it, '-' until its attempt reports: what that
-- reports late is charged then, once, while a repeated call finds nothing to charge.
local function remember_closed(lease, seat, charged, of, names)
  local job = parse_lease(lease)
  local told = seat .. ' ' .. charged .. ' ' .. (of.agent or '-') .. ' ' .. (of.q or '-') .. ' ' .. (names or '')
  C('SET', K .. 'closed_lease:' .. lease, told, 'PX', math.max(C('PTTL', job_key(job)), 3600000))
end

-- Charge what an attempt used to the seat that held its lease (`by`, nil where it was closed before), and enter it as `what`. Gives
-- the seat, nil where all was settled before; second: whether this is the attempt's first report. What it used only grows: an
-- earlier report that comes again takes nothing back, and only the difference is entered.
local function settle(lease, by, used, what, of, names)
  local micro, tokens_in, tokens_out, priced = parse_usage(used)
  if by then
    record_attempt(what, lease, by, of, micro, tokens_in, tokens_out, priced, names)
    return by, true
  end
  local late = C('GET', K .. 'closed_lease:' .. lease)
  if not late then return nil, false end
  local seat, charged, agent, q, under = string.match(late, '^(%S+) (%S+) (%S+) (%S+) (%S*)$')
  names = under ~= '' and under or nil
  local m, i, x, before = parse_usage(charged)
  priced = priced or before
  micro, tokens_in, tokens_out = math.max(micro, m), math.max(tokens_in, i), math.max(tokens_out, x)
  local more = micro + tokens_in + tokens_out > m + i + x
  if charged == '-' or more then
    local told = (priced and int_text(micro) or '') .. ',' .. int_text(tokens_in) .. ',' .. int_text(tokens_out)
    C('SET', K .. 'closed_lease:' .. lease, seat .. ' ' .. told .. ' ' .. agent .. ' ' .. q .. ' ' .. under, 'KEEPTTL')
  end
  if what == 'done' or more then
    of.agent, of.q = of.agent or agent, q ~= '-' and q or of.q  -- a chain may have gone on to another link since
    record_attempt(what, lease, seat, of, micro - m, tokens_in - i, tokens_out - x, priced, names, true)
  end
  return seat, charged == '-'
end

-- An attempt whose lease has lapsed has its say all the same: its stage stands ready no more.
local function take_back(job, step, rest)
  take_out(job, step)
  C('ZREM', K .. 'delays', timeout_entry(job, step, string.match(rest, '^(%d+):(%d+)')))
end

local function stop_step(job, step)  -- whatever the step is doing, it stops
  local waited = take_out(job, step)
  local f = C('HMGET', job_key(job), 'lease:' .. step, 'quarantine:' .. step, 'queue_timeout', 'epoch:' .. step, 'attempts:' .. step, 'agent', 'header:' .. step,
    'started_at:' .. step)
  if waited and f[3] then C('ZREM', K .. 'delays', timeout_entry(job, step, f[4], f[5])) end
  if f[2] then
    C('HDEL', job_key(job), 'quarantine:' .. step)
    C('ZREM', K .. 'quarantine', job .. ':' .. step)
  end
  local lease = f[1] and job .. ':' .. step .. ':' .. f[1]
  local seat, names
  if lease then seat, names = close_lease(lease) end
  if seat then
    local of = describe_attempt(f[6], f[7], f[8])
    remember_closed(lease, seat, '-', of, names)
    record_attempt('cancelled', lease, seat, of, 0, 0, 0, false, names)
    publish_stop('revoked', job .. '.' .. step, seat)
  end
end

-- Note what is to be done for a job at a later time. Its entry goes with the job; of very many those that came first, the
-- others when they are due and nothing is found.
local function schedule(job, at, entry)
  C('ZADD', K .. 'delays', at, entry)
  local noted = C('HGET', job_key(job), 'delays') or ''
  if #noted < 4000 then C('HSET', job_key(job), 'delays', noted .. entry .. ' ') end
end

-- What is kept of an ended job, for as long as its result.
local function write_summary(job, f, state, left, ttl, body)
  local key = K .. 'summary:' .. job
  C('HSET', key, 'name', f[1] or '', 'agent', f[2] or '', 'steps', f[3] or 0, 'submitted_at', f[4] or NOW, 'priority', f[5] or 0, 'deadline', f[6] or 0,
    'ended_at', NOW, 'state', state, 'unfinished', left)
  if body then C('HSET', key, 'body_digest', body) end
  C('PEXPIRE', key, ttl)
  C('ZADD', K .. 'ended_jobs', NOW + ttl, job)
end

-- How many steps of jobs this call has gone through, to end them or to start them again: nobody else is served meanwhile.
local walked = 0

-- The one place where a job gets its final state. payload: a value or link (done), else an error as JSON. left: how many of
-- its steps have not ended, where the caller has not noted that in the job.
local function end_job(job, state, payload, left)
  local j, sub = job_key(job), K .. 'submitted:' .. job
  local fields = {'name', 'agent', 'steps', 'submitted_at', 'priority', 'deadline', 'celery', 'result_ttl', 'stream', 'body_digest', 'idempotency_key', 'queue_timeout', 'delays'}
  local f = C('HMGET', j, 'unfinished', 'charged_team', unpack(fields))
  local admitted = f[5]
  left = left or tonumber(f[1] or 0)
  if f[2] then release_reservation(job) end
  if left > 0 then
    walked = walked + tonumber(admitted)
    for step = 0, tonumber(admitted) - 1 do stop_step(job, step) end
  end
  if not admitted then  -- it never left the inbox
    f = C('HMGET', sub, 'input', 'charged_team', unpack(fields))
    if f[1] then unlink_value(f[1]) end
    if f[14] then C('ZREM', K .. 'delays', 'inbox_timeout:' .. job .. ':0:0') end
    C('ZREM', K .. 'inbox', job)
  end
  for entry in words(f[15]) do C('ZREM', K .. 'delays', entry) end
  local about, celery, stream, body, idem = {unpack(f, 3, 8)}, f[9], unpack(f, 11, 13)
  local ttl = tonumber(f[10] or RESULT_TTL)
  C('RPUSH', K .. 'result:' .. job, state .. '\n' .. payload)
  C('PEXPIRE', K .. 'result:' .. job, ttl)
  C('PEXPIRE', K .. 'rows:' .. job, ttl)
  if stream then
    C('XADD', K .. 'stream:' .. job, '*', 'end', state)
    C('PEXPIRE', K .. 'stream:' .. job, ttl)
  end
  local vals = K .. 'values:' .. job
  for _, v in ipairs(C('SMEMBERS', vals)) do
    if '@' .. v == payload then C('PEXPIRE', K .. 'value:' .. v, ttl) else C('UNLINK', K .. 'value:' .. v) end
  end
  write_summary(job, about, state, left, ttl, body)
  if idem then C('PEXPIRE', K .. 'idempotency:' .. idem, ttl) end
  publish_end(job, about[1] or 'graph', about[2], admitted and about[4], state, payload)
  C('UNLINK', j, sub, vals)
  C('ZREM', K .. 'deadlines', job)
  if celery then C('ZADD', K .. 'answers', NOW, job) end
  return celery and 'celery' or 'plain'
end

-- One dependency of each dependent is met; those with none left become ready. Pure ones are handed to `pure` where given:
-- the slot that completes runs the first of them itself.
local function release_dependents(job, dependents, pure, later)
  if dependents == '-' then return end
  local j = job_key(job)
  for d in string.gmatch(dependents, '[^,]+') do
    if C('HINCRBY', j, 'dependencies:' .. d, -1) == 0 and C('HEXISTS', j, 'skipped:' .. d) == 0 then
      if pure and read_header(job, d).q == 'gridq:pure' then pure[#pure + 1] = d else make_ready(job, d, later) end
    end
  end
end

-- The arm that was not taken: its steps count as finished, and nothing in it runs. Gives how many they are.
local function skip_arm(job, list, pure, later)
  local j = job_key(job)
  local steps = {}
  for s in words(list) do steps[#steps + 1] = s; C('HSET', j, 'skipped:' .. s, 1) end
  if #steps > 0 then C('HINCRBY', j, 'unfinished', -#steps) end
  for _, s in ipairs(steps) do release_dependents(job, read_header(job, s).dependents, pure, later) end
  return #steps
end

-- A scope starts again: every step in it is withdrawn, its epoch raised, its counters set back.
local function restart_scope(job, r, pushed)
  local j = job_key(job)
  local list, inner = string.match(C('HGET', j, 'scope:' .. r), '^%S+ %S+ %S+ ([^;]*);(.*)$')
  local again = 0
  for s, count in string.gmatch(list, '(%d+)=(%d+)') do
    walked = walked + 1
    stop_step(job, s)
    local f = C('HMGET', j, 'output:' .. s, 'skipped:' .. s)
    if f[1] or f[2] then again = again + 1 end
    C('HDEL', j, 'output:' .. s, 'skipped:' .. s, 'done:' .. s, 'lease:' .. s, 'failures:' .. s, 'losses:' .. s, 'deaths:' .. s, 'excluded:' .. s, 'ready_at:' .. s, 'pieces:' .. s,
      'released_by:' .. s, 'chain_failures:' .. s)
    local unfit = C('HGET', j, 'unfit:' .. s)
    if unfit then C('HSET', j, 'excluded:' .. s, unfit) end
    C('HSET', j, 'dependencies:' .. s, count)
    C('HINCRBY', j, 'epoch:' .. s, 1)
    if count == '0' then pushed[#pushed + 1] = s end
  end
  if again > 0 then C('HINCRBY', j, 'unfinished', again) end
  for r2 in words(inner) do C('HDEL', j, 'tries:' .. r2); C('HINCRBY', j, 'scope_epoch:' .. r2, 1) end
  return C('HINCRBY', j, 'scope_epoch:' .. r, 1)
end

-- A step has failed for good: the innermost Retry with a try left starts again, else the job fails.
local function fail_step(job, step, err)
  local j = job_key(job)
  local r = read_header(job, step).scope
  while r do
    local parent, max, wait = string.match(C('HGET', j, 'scope:' .. r), '^(%S+) (%S+) (%S+) ')
    if C('HINCRBY', j, 'tries:' .. r, 1) < tonumber(max) then
      local entries = {}
      local se = restart_scope(job, r, entries)
      if wait ~= '0' then
        schedule(job, NOW + tonumber(wait), 'retry:' .. job .. ':' .. r .. ':' .. se)
      else
        for _, s in ipairs(entries) do make_ready(job, s) end
      end
      return 'again'
    end
    r = parent ~= '-' and parent or nil
  end
  return end_job(job, 'failed', err)
end

-- An error's record, as compact JSON with its details last, with more in these. Text in text: Lua cannot read JSON and write
-- it again as it was.
local function add_details(err, more)
  if string.sub(err, -2) ~= '}}' or more == '' then return err end
  return string.sub(err, 1, -3) .. (string.sub(err, -3) == '{}}' and '' or ',') .. more .. '}}'
end

-- The same with how often its step was claimed, and how that went, as far as it went wrong.
local function add_counts(job, step, err)
  local f, more = C('HMGET', job_key(job), 'attempts:' .. step, 'failures:' .. step, 'losses:' .. step, 'deaths:' .. step), {}
  for i, name in ipairs({'attempts', 'failures', 'losses', 'deaths'}) do
    if f[i] then more[#more + 1] = '"' .. name .. '":' .. f[i] end
  end
  return add_details(err, table.concat(more, ','))
end

-- A stage that may kill whoever runs it stands aside, in no pending set, until an operator says what becomes of it or its time
-- is over. No Retry starts it again: its next try would kill the next worker.
local function quarantine_step(job, step, err)
  if QUARANTINE == 0 then return end_job(job, 'failed', add_counts(job, step, err)) end
  C('HSET', job_key(job), 'quarantine:' .. step, NOW + QUARANTINE .. ' ' .. err)
  C('ZADD', K .. 'quarantine', NOW + QUARANTINE, job .. ':' .. step)
  return 'quarantined'
end

-- A stage in quarantine is given up, and its job fails. `by`: who said so. Gives what finish gives, nil where it stands in none.
local function drop_step(job, step, by)
  local err = string.match(C('HGET', job_key(job), 'quarantine:' .. step) or '', '^%S+ (.*)$')
  if not err then return nil end
  publish_stop('failed', job .. '.' .. step, monitoring_router(), 'stage.quarantined')
  return end_job(job, 'failed', add_details(add_counts(job, step, err), '"step":' .. step .. ',"dropped_by":' .. cjson.encode(by)))
end

-- An attempt ended without a result through no fault of the stage. kind: seat (counts to MAXATT, of a stage with a chain at each of its
-- links; the seat excluded for `pause` ms), lost (its lease lapsed: counts to MAXLOSS), died (the process that ran it died: twice is quarantine), back
-- (handed back: nothing counts). A seat that lost it or whose child died is excluded for a while. Returns again | quarantined |
-- celery | plain.
local LIMITS = {seat = {'failures:', MAX_ATTEMPTS}, lost = {'losses:', MAX_LOSSES}, died = {'deaths:', 2}}
local function end_attempt(job, step, seat, kind, pause, err)
  local j = job_key(job)
  local limit = LIMITS[kind]
  local last = limit and C('HINCRBY', j, limit[1] .. step, 1) >= limit[2]
  local f = C('HMGET', j, 'pieces:' .. step, 'chain:' .. step, 'chain_failures:' .. step, 'header:' .. step)
  local out = f[1]  -- its first token is out: no second try
  if kind == 'seat' and f[2] then last = not count_chain_failure(job, step, f[2], f[3], f[4]) end
  if last and kind == 'died' and not out then return quarantine_step(job, step, err) end
  if last or out then return fail_step(job, step, add_counts(job, step, err)) end
  if limit and seat then
    local x = C('HGET', j, 'excluded:' .. step) or ''
    if not is_excluded(x, seat) then C('HSET', j, 'excluded:' .. step, x == '' and seat or x .. ',' .. seat) end
    -- x: the seat asked for this time, and gets it. l: others first for one lease, unless there are none (the sweep looks).
    local member = job .. ':' .. step .. ':' .. seat
    if pause > 0 then schedule(job, NOW + pause, 'backoff:' .. member) else schedule(job, NOW + LEASE, 'loss:' .. member) end
  end
  make_ready(job, step)
  return 'again'
end
