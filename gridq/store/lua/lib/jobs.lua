-- The life of a job: leases closed; steps finished, skipped, failed, restarted; the end.

-- Close a lease: the slot is free again, and what it reserved is released. Return the seat, nil if the lease was not open, and the names of
-- the shared budgets under which it was claimed, nil if no budget applied to its seat then.
local function close_lease(lease)
  if C('ZREM', K .. 'leases', lease) == 0 then return nil end
  local seat, slot, money, tokens, requests, names =
    string.match(C('HGET', K .. 'lease_info', lease), '^(%S+) (%S+) (%d+) ?(%d*) ?(%d*) ?(%S*)$')
  names = names ~= '' and names or nil
  if names then release_reserved(seat, tonumber(money), tonumber(tokens), tonumber(requests), names) end
  C('HDEL', K .. 'lease_info', lease)
  if C('HGET', K .. 'slots:' .. seat, slot) == lease then C('HDEL', K .. 'slots:' .. seat, slot) end
  return seat, names
end

-- Parse what an attempt used, as its worker reports it: 'micro-dollars,tokens in,tokens out', or only the first; without micro-dollars it
-- has no price; '-' if nothing is known. Return three numbers, and whether it has a price.
local function parse_usage(text)
  local micro, tokens_in, tokens_out = string.match(text, '^(%d*),?(%d*),?(%d*)$')
  return tonumber(micro) or 0, tonumber(tokens_in) or 0, tonumber(tokens_out) or 0, tonumber(micro) ~= nil
end

-- Return what the ledger says of an attempt (agent, queue, time of its claim), from the job's fields agent, header:<step> and
-- started_at:<step>, false if the job is gone. `team`: given if limits count what it used.
local function describe_attempt(agent, header, since, team)
  return {agent = agent or nil, q = header and string.match(header, '^%S+') or nil, since = since or nil, team = team or nil}
end

-- Charge an attempt to its seat, and enter it in the ledger. Attempts of free stages, of which there are many, are entered only if they
-- used something all the same. `names`: as from close_lease. An attempt is one request of the seat, once, unless it was handed back
-- without having used anything.
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

-- Remember a lease that ended without an output, with what was charged for it ('-' until its attempt reports). What it reports late is
-- charged then, once; a repeated call finds nothing to charge.
local function remember_closed(lease, seat, charged, of, names)
  local job = parse_lease(lease)
  local text = seat .. ' ' .. charged .. ' ' .. (of.agent or '-') .. ' ' .. (of.q or '-') .. ' ' .. (names or '')
  C('SET', K .. 'closed_lease:' .. lease, text, 'PX', math.max(C('PTTL', job_key(job)), 3600000))
end

-- Charge what an attempt used to the seat that held its lease (`seat`, nil if it was closed before), and enter it as `what`. Return the
-- seat, nil if all was settled before, and whether this is the attempt's first report. Use only grows: an earlier report that comes again
-- takes nothing back, and only the difference is entered.
local function settle(lease, seat, used, what, of, names)
  local micro, tokens_in, tokens_out, priced = parse_usage(used)
  if seat then
    record_attempt(what, lease, seat, of, micro, tokens_in, tokens_out, priced, names)
    return seat, true
  end
  local closed = C('GET', K .. 'closed_lease:' .. lease)
  if not closed then return nil, false end
  local holder, charged, agent, q, under = string.match(closed, '^(%S+) (%S+) (%S+) (%S+) (%S*)$')
  names = under ~= '' and under or nil
  local micro_before, in_before, out_before, priced_before = parse_usage(charged)
  priced = priced or priced_before
  micro, tokens_in, tokens_out = math.max(micro, micro_before), math.max(tokens_in, in_before), math.max(tokens_out, out_before)
  local more = micro + tokens_in + tokens_out > micro_before + in_before + out_before
  if charged == '-' or more then
    local total = (priced and int_text(micro) or '') .. ',' .. int_text(tokens_in) .. ',' .. int_text(tokens_out)
    C('SET', K .. 'closed_lease:' .. lease, holder .. ' ' .. total .. ' ' .. agent .. ' ' .. q .. ' ' .. under, 'KEEPTTL')
  end
  if what == 'done' or more then
    of.agent, of.q = of.agent or agent, q ~= '-' and q or of.q  -- a chain may have gone on to another link since
    record_attempt(what, lease, holder, of, micro - micro_before, tokens_in - in_before, tokens_out - out_before, priced, names, true)
  end
  return holder, charged == '-'
end

-- Take a stage out of its pending set because an attempt whose lease had lapsed reports after all.
local function take_back(job, step, fence)
  take_out(job, step)
  C('ZREM', K .. 'delays', timeout_entry(job, step, string.match(fence, '^(%d+):(%d+)')))
end

-- Stop whatever the step is doing.
local function stop_step(job, step)
  local was_waiting = take_out(job, step)
  local fence, quarantine, timeout, epoch, attempts, agent, header, started_at = unpack(C('HMGET', job_key(job), 'lease:' .. step,
    'quarantine:' .. step, 'queue_timeout', 'epoch:' .. step, 'attempts:' .. step, 'agent', 'header:' .. step, 'started_at:' .. step))
  if was_waiting and timeout then C('ZREM', K .. 'delays', timeout_entry(job, step, epoch, attempts)) end
  if quarantine then
    C('HDEL', job_key(job), 'quarantine:' .. step)
    C('ZREM', K .. 'quarantine', job .. ':' .. step)
  end
  local lease = fence and job .. ':' .. step .. ':' .. fence
  local seat, names
  if lease then seat, names = close_lease(lease) end
  if seat then
    local attempt = describe_attempt(agent, header, started_at)
    remember_closed(lease, seat, '-', attempt, names)
    record_attempt('cancelled', lease, seat, attempt, 0, 0, 0, false, names)
    publish_stop('revoked', job .. '.' .. step, seat)
  end
end

-- Schedule an entry in `delays` for a job. It goes with the job, if it is among the first of very many; the others are found to be stale
-- when they are due.
local function schedule(job, at, entry)
  C('ZADD', K .. 'delays', at, entry)
  local noted = C('HGET', job_key(job), 'delays') or ''
  if #noted < 4000 then C('HSET', job_key(job), 'delays', noted .. entry .. ' ') end
end

-- How many steps of jobs this call has walked through, to end or restart them: nobody else is served meanwhile.
local walked = 0

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
    walked = walked + tonumber(admitted)
    for step = 0, tonumber(admitted) - 1 do stop_step(job, step) end
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
  if string.find(job, '.background.', 1, true) then C('PEXPIRE', K .. 'response:' .. job, ttl) end
  local values = K .. 'values:' .. job
  for _, value in ipairs(C('SMEMBERS', values)) do
    if '@' .. value == payload then C('PEXPIRE', K .. 'value:' .. value, ttl) else C('UNLINK', K .. 'value:' .. value) end
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
  C('UNLINK', j, submitted, values)
  C('ZREM', K .. 'deadlines', job)
  if celery then C('ZADD', K .. 'answers', NOW, job) end
  return celery and 'celery' or 'plain'
end

-- Count down the dependencies of each dependent step; those without any left become ready. If `pure` is given, pure steps are added to it
-- instead: the slot that completes runs the first of them itself.
local function release_dependents(job, dependents, pure, later)
  if dependents == '-' then return end
  local j = job_key(job)
  for d in string.gmatch(dependents, '[^,]+') do
    if C('HINCRBY', j, 'dependencies:' .. d, -1) == 0 and C('HEXISTS', j, 'skipped:' .. d) == 0 then
      if pure and read_header(job, d).q == 'gridq:pure' then pure[#pure + 1] = d else make_ready(job, d, later) end
    end
  end
end

-- Skip the steps of the arm that was not taken: they count as finished. Return how many they are.
local function skip_arm(job, list, pure, later)
  local j = job_key(job)
  local steps = {}
  for step in words(list) do steps[#steps + 1] = step; C('HSET', j, 'skipped:' .. step, 1) end
  if #steps > 0 then C('HINCRBY', j, 'unfinished', -#steps) end
  for _, step in ipairs(steps) do release_dependents(job, read_header(job, step).dependents, pure, later) end
  return #steps
end

-- Restart the scope of a Retry: stop every step in it, raise its epoch, set its counters back. Steps that are ready at once are added to
-- `ready`. Return the scope's new epoch.
local function restart_scope(job, retry, ready)
  local j = job_key(job)
  local list, inner = string.match(C('HGET', j, 'scope:' .. retry), '^%S+ %S+ %S+ ([^;]*);(.*)$')
  local again = 0
  for s, count in string.gmatch(list, '(%d+)=(%d+)') do
    walked = walked + 1
    stop_step(job, s)
    local output, skipped = unpack(C('HMGET', j, 'output:' .. s, 'skipped:' .. s))
    if output or skipped then again = again + 1 end
    C('HDEL', j, 'output:' .. s, 'skipped:' .. s, 'done:' .. s, 'lease:' .. s, 'failures:' .. s, 'losses:' .. s, 'deaths:' .. s,
      'excluded:' .. s, 'ready_at:' .. s, 'pieces:' .. s, 'released_by:' .. s, 'chain_failures:' .. s)
    local unfit = C('HGET', j, 'unfit:' .. s)
    if unfit then C('HSET', j, 'excluded:' .. s, unfit) end
    C('HSET', j, 'dependencies:' .. s, count)
    C('HINCRBY', j, 'epoch:' .. s, 1)
    if count == '0' then ready[#ready + 1] = s end
  end
  if again > 0 then C('HINCRBY', j, 'unfinished', again) end
  for nested in words(inner) do C('HDEL', j, 'tries:' .. nested); C('HINCRBY', j, 'scope_epoch:' .. nested, 1) end
  return C('HINCRBY', j, 'scope_epoch:' .. retry, 1)
end

-- A step has failed for good: the innermost Retry with a try left restarts, else the job fails.
local function fail_step(job, step, err)
  local j = job_key(job)
  local retry = read_header(job, step).scope
  while retry do
    local parent, max, wait = string.match(C('HGET', j, 'scope:' .. retry), '^(%S+) (%S+) (%S+) ')
    if C('HINCRBY', j, 'tries:' .. retry, 1) < tonumber(max) then
      local ready = {}
      local epoch = restart_scope(job, retry, ready)
      if wait ~= '0' then
        schedule(job, NOW + tonumber(wait), 'retry:' .. job .. ':' .. retry .. ':' .. epoch)
      else
        for _, s in ipairs(ready) do make_ready(job, s) end
      end
      return 'again'
    end
    retry = parent ~= '-' and parent or nil
  end
  return end_job(job, 'failed', err)
end

-- Add details to an error record, compact JSON that ends with its details. This is done in text: Lua cannot read JSON and write it again
-- unchanged.
local function add_details(err, more)
  if string.sub(err, -2) ~= '}}' or more == '' then return err end
  return string.sub(err, 1, -3) .. (string.sub(err, -3) == '{}}' and '' or ',') .. more .. '}}'
end

-- Add to an error record how often its step was claimed, and how attempts went wrong.
local function add_counts(job, step, err)
  local names = {'attempts', 'failures', 'losses', 'deaths'}
  local counts, more = C('HMGET', job_key(job), 'attempts:' .. step, 'failures:' .. step, 'losses:' .. step, 'deaths:' .. step), {}
  for i, name in ipairs(names) do
    if counts[i] then more[#more + 1] = '"' .. name .. '":' .. counts[i] end
  end
  return add_details(err, table.concat(more, ','))
end
