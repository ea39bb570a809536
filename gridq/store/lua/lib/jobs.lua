-- The life of a job: its leases closed, its steps stopped, its end. lib/steps.lua has what happens to steps in between.

-- Close a lease: the slot is free again, and what it reserved is released. Return the seat, nil if the lease was not open, and the names of
-- the shared budgets under which it was claimed, nil if no budget applied to its seat then.
local function close_lease(lease)
  if C('ZREM', K .. 'leases', lease) == 0 then return nil end
  local info = C('HGET', K .. 'lease_info', lease)
  local seat, slot = string.match(info, '^(%S+) (%S+)')
  local reserved, names = parse_reserved(info)
  if names then release_reserved(seat, reserved, names) end
  C('HDEL', K .. 'lease_info', lease)
  if C('HGET', K .. 'slots:' .. seat, slot) == lease then C('HDEL', K .. 'slots:' .. seat, slot) end
  return seat, names
end

-- Parse what an attempt used, as its worker reports it: 'micro-dollars,tokens in,tokens out,gpu-ms', or only the first ones; without
-- micro-dollars it has no price; '-' if nothing is known. Return it by resource, with `any`: whether it is anything, and `priced`.
local function parse_usage(text)
  local micro, tokens_in, tokens_out, gpu_ms = string.match(text, '^(%d*),?(%d*),?(%d*),?(%d*)$')
  local use = {money = tonumber(micro) or 0, tokens_in = tonumber(tokens_in) or 0, tokens_out = tonumber(tokens_out) or 0,
    gpu_seconds = tonumber(gpu_ms) or 0, priced = tonumber(micro) ~= nil}
  use.tokens = use.tokens_in + use.tokens_out
  use.any = use.money + use.tokens + use.gpu_seconds > 0
  return use
end

-- Return what the ledger says of an attempt (agent, queue, time of its claim), from the job's fields agent, header:<step> and
-- started_at:<step>, false if the job is gone. `team`: given if limits count what it used.
local function describe_attempt(agent, header, since, team)
  return {agent = agent or nil, q = header and string.match(header, '^%S+') or nil, since = since or nil, team = team or nil}
end

-- Charge an attempt to its seat, and enter it in the ledger. Attempts of free stages, of which there are many, are entered only if they
-- used something all the same. `names`: as from close_lease. An attempt is one request of the seat, once, unless it was handed back
-- without having used anything.
local function record_attempt(what, lease, seat, of, use, names, again)
  if not use.any and (not of.q or is_free(of.q)) then return end
  local request = names and not again and of.q and not is_free(of.q) and (use.any or what ~= 'back') and 1 or 0
  charge_budgets(seat, names, use, request)
  local job, step, attempt = string.match(lease, '^([^:]+):(%d+):%d+:(%d+)')
  local month = of.team and use.money > 0 and current_window('month') or ''
  append_ledger(ledger_entry(what, job, step, attempt, seat, of.agent or '', of.team or '', of.q or '',
    use.priced and int_text(use.money) or '', int_text(use.tokens_in), int_text(use.tokens_out), of.since and NOW - of.since or '', month)
    .. ' ' .. (names or '') .. ' ' .. request .. (use.gpu_seconds > 0 and ' ' .. int_text(use.gpu_seconds) or ''))
end

-- Remember a lease that ended without an output, with what was charged for it ('-' until its attempt reports). What it reports late is
-- charged then, once; a repeated call finds nothing to charge. `j`: the job's record, if it has ended.
local function remember_closed(lease, seat, charged, of, names, j)
  local job = parse_lease(lease)
  local text = seat .. ' ' .. charged .. ' ' .. (of.agent or '-') .. ' ' .. (of.q or '-') .. ' ' .. (names or '')
  C('SET', K .. 'closed_lease:' .. lease, text, 'PX', math.max(C('PTTL', j or job_key(job)), 3600000))
end

-- Charge what an attempt used to the seat that held its lease (`seat`, nil if it was closed before), and enter it as `what`. Return the
-- seat, nil if all was settled before, and whether this is the attempt's first report. Use only grows: an earlier report that comes again
-- takes nothing back, and only the difference is entered.
local function settle(lease, seat, used, what, of, names)
  local use = parse_usage(used)
  if seat then
    record_attempt(what, lease, seat, of, use, names)
    return seat, true
  end
  local closed = C('GET', K .. 'closed_lease:' .. lease)
  if not closed then return nil, false end
  local holder, charged, agent, q, under = string.match(closed, '^(%S+) (%S+) (%S+) (%S+) (%S*)$')
  names = under ~= '' and under or nil
  local before, total, more = parse_usage(charged), {}, {}
  for i, name in ipairs({'money', 'tokens_in', 'tokens_out', 'gpu_seconds'}) do
    total[i] = int_text(math.max(use[name], before[name]))
    more[i] = int_text(math.max(use[name] - before[name], 0))
  end
  if not (use.priced or before.priced) then total[1], more[1] = '', '' end
  local rest = parse_usage(table.concat(more, ','))
  if charged == '-' or rest.any then
    C('SET', K .. 'closed_lease:' .. lease,
      holder .. ' ' .. table.concat(total, ',') .. ' ' .. agent .. ' ' .. q .. ' ' .. under, 'KEEPTTL')
  end
  if what == 'done' or rest.any then
    of.agent, of.q = of.agent or agent, q ~= '-' and q or of.q  -- a chain may have gone on to another link since
    record_attempt(what, lease, holder, of, rest, names, true)
  end
  return holder, charged == '-'
end

-- Take a stage out of its pending set because an attempt whose lease had lapsed reports after all.
local function take_back(job, step, fence)
  take_out(job, step)
  C('ZREM', K .. 'delays', timeout_entry(job, step, string.match(fence, '^(%d+):(%d+)')))
end

-- Stop whatever the step is doing. `j`: the job's record, if it has ended. Return whether it waited or ran.
local function stop_step(job, step, j)
  j = j or job_key(job)
  local was_waiting = take_out(job, step, nil, j)
  local fence, quarantine, timeout, epoch, attempts, agent, header, started_at = unpack(C('HMGET', j, 'lease:' .. step,
    'quarantine:' .. step, 'queue_timeout', 'epoch:' .. step, 'attempts:' .. step, 'agent', 'header:' .. step, 'started_at:' .. step))
  if was_waiting and timeout then C('ZREM', K .. 'delays', timeout_entry(job, step, epoch, attempts)) end
  if quarantine then
    C('HDEL', j, 'quarantine:' .. step)
    C('ZREM', K .. 'quarantine', job .. ':' .. step)
  end
  local lease = fence and job .. ':' .. step .. ':' .. fence
  local seat, names
  if lease then seat, names = close_lease(lease) end
  if seat then
    local attempt = describe_attempt(agent, header, started_at)
    remember_closed(lease, seat, '-', attempt, names, j)
    record_attempt('cancelled', lease, seat, attempt, parse_usage('-'), names)
    publish_stop('revoked', job .. '.' .. step, seat)
  end
  return was_waiting or seat ~= nil
end

-- Schedule an entry in `delays` for a job. It goes with the job, if it is among the first of very many; the others are found to be stale
-- when they are due.
local function schedule(job, at, entry)
  C('ZADD', K .. 'delays', at, entry)
  local noted = C('HGET', job_key(job), 'delays') or ''
  if #noted < 4000 then C('HSET', job_key(job), 'delays', noted .. entry .. ' ') end
end

-- How much this call has done for jobs of any size: about the number of commands. Nobody else is served meanwhile, so it does no more than
-- MAX_WALK. `work_left`: something was left for other calls, as advance.lua does it.
local walked, work_left = 0, false

-- Stop the steps of a job that has ended, and delete its values. Its record stands in `remains:<job>` until then. `stopped`: its steps have
-- all ended. Return whether all is done; if not, the next call goes on where this one has ended.
local function clean_up(job, stopped)
  local remains, values = K .. 'remains:' .. job, K .. 'values:' .. job
  local steps, at
  if not stopped then steps, at = unpack(C('HMGET', remains, 'steps', 'cleaned')) end
  if steps then
    at = tonumber(at or 0)
    while at < tonumber(steps) and walked < MAX_WALK do
      walked = walked + (stop_step(job, at, remains) and 12 or 3)
      at = at + 1
    end
    if at < tonumber(steps) then
      C('HSET', remains, 'cleaned', at)
      return false
    end
    C('UNLINK', remains)
  end
  while walked < MAX_WALK do
    local names = C('SPOP', values, 500)
    for _, name in ipairs(names) do C('UNLINK', K .. 'value:' .. name) end
    if #names < 500 then return true end
    walked = walked + 500
  end
  return false
end

-- Stop a step whose job has ended, if that has not been done yet. Return whether there was still a record of the job.
local function stop_remaining(job, step)
  local remains = K .. 'remains:' .. job
  if C('EXISTS', remains) == 0 then return false end
  stop_step(job, step, remains)
  return true
end

-- End a job: the only place where a job gets its final state. `payload`: a value or link (done), else an error as JSON. `left`: how many of
-- its steps have not ended, if the caller has not written that to the job.
local function end_job(job, state, payload, left)
  local j, submitted = job_key(job), K .. 'submitted:' .. job
  local function read(key)
    return unpack(C('HMGET', key, 'name', 'agent', 'steps', 'submitted_at', 'priority', 'deadline', 'celery', 'result_ttl', 'stream',
      'body_digest', 'idempotency_key', 'queue_timeout', 'delays', 'unfinished', 'charged_team'))
  end
  local name, agent, steps, submitted_at, priority, deadline, celery, result_ttl, stream, body_digest, idempotency_key, timeout, delays,
    unfinished, charged_team = read(j)
  local admitted = steps
  left = left or tonumber(unfinished or 0)
  if charged_team then release_reservation(job) end
  if left > 0 then
    C('RENAME', j, K .. 'remains:' .. job)
  end
  if not admitted then  -- it never left the inbox
    name, agent, steps, submitted_at, priority, deadline, celery, result_ttl, stream, body_digest, idempotency_key, timeout, delays,
      unfinished, charged_team = read(submitted)
    local input = C('HGET', submitted, 'input')
    if input then unlink_value(input) end
    if timeout then C('ZREM', K .. 'delays', 'inbox_timeout:' .. job .. ':0:0') end
    C('ZREM', K .. 'inbox', job)
  end
  for entry in words(delays) do C('ZREM', K .. 'delays', entry) end
  local ttl = tonumber(result_ttl or RESULT_TTL)
  C('RPUSH', K .. 'result:' .. job, state .. '\n' .. payload)
  C('PEXPIRE', K .. 'result:' .. job, ttl)
  C('PEXPIRE', K .. 'rows:' .. job, ttl)
  if stream then
    C('XADD', K .. 'stream:' .. job, '*', 'end', state)
    C('PEXPIRE', K .. 'stream:' .. job, ttl)
  end
  if string.find(job, '.background.', 1, true) then  -- as in gridq/protocol/response_object.py
    if state == 'done' then C('UNLINK', K .. 'response:' .. job) else C('PEXPIRE', K .. 'response:' .. job, ttl) end
  end
  if string.sub(payload, 1, 1) == '@' then
    C('SREM', K .. 'values:' .. job, string.sub(payload, 2))
    C('PEXPIRE', K .. 'value:' .. string.sub(payload, 2), ttl)
  end
  local summary = K .. 'summary:' .. job
  C('HSET', summary, 'name', name or '', 'agent', agent or '', 'steps', steps or 0, 'submitted_at', submitted_at or NOW,
    'priority', priority or 0, 'deadline', deadline or 0, 'ended_at', NOW, 'state', state, 'unfinished', left)
  if body_digest then C('HSET', summary, 'body_digest', body_digest) end
  if idempotency_key then C('HSET', summary, 'idempotency_key', idempotency_key) end
  if stream then C('HSET', summary, 'stream', stream) end
  C('PEXPIRE', summary, ttl)
  C('ZADD', K .. 'ended_jobs', NOW + ttl, job)
  if idempotency_key then C('PEXPIRE', K .. 'idempotency:' .. idempotency_key, ttl) end
  publish_end(job, name or 'graph', agent, admitted and submitted_at, state, payload)
  C('UNLINK', j, submitted, K .. 'work:' .. job)
  C('ZREM', K .. 'deadlines', job)
  if celery then C('ZADD', K .. 'answers', NOW, job) end
  if not clean_up(job, left <= 0) then
    C('ZADD', K .. 'long_work', NOW, job)
    work_left = true
  end
  return celery and 'celery' or 'plain'
end
