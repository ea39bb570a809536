-- Claiming: used by claim.lua, and by complete.lua, which goes on with the next stage.

-- Return the values of these fields of a job, or nil and their length in bytes if that is over MAX_STAGE_INPUT: then neither this script
-- nor a worker has them all in its memory.
local function read_values(j, fields)
  local values, bytes = {}, 0
  for i = 1, #fields, 500 do
    local part = C('HMGET', j, unpack(fields, i, math.min(i + 499, #fields)))
    for k = 1, #part do
      local value = part[k]
      values[#values + 1] = value
      if value and #fields > 1 then bytes = bytes + value_length(value) end
    end
    if bytes > MAX_STAGE_INPUT then
      for n = i + 500, #fields do
        local length = C('HSTRLEN', j, fields[n])
        bytes = bytes + (length < 200 and length > 0 and value_length(C('HGET', j, fields[n])) or length)
      end
      return nil, bytes
    end
  end
  return values
end

-- Build a claim, {lease, spec, meta, refs, input, value …}. meta is 'wait_ms stream remaining_ms priority queue agent now_ms failures
-- losses deaths name'. A skipped step has no output: its place is nil. If its values are too long, refs is '!' and their bytes, and none
-- is there.
local function build_claim(lease, wait_ms, s)
  local job = parse_lease(lease)
  local h = read_header(nil, nil, s.header)
  local meta = wait_ms .. ' ' .. (s.stream or '0') .. ' ' .. (s.deadline - NOW) .. ' ' .. s.priority .. ' ' .. h.q .. ' ' .. s.agent .. ' '
    .. NOW .. ' ' .. s.failures .. ' ' .. s.losses .. ' ' .. s.deaths .. ' ' .. (s.name or '')
  local fields = h.input and {'input'} or {}
  if h.refs ~= '-' then
    for ref in string.gmatch(h.refs, '[^,]+') do fields[#fields + 1] = 'output:' .. ref end
  end
  local values, bytes = read_values(job_key(job), fields)
  if not values then return {lease, s.spec, meta, '!' .. int_text(bytes), ''} end
  local reply = {lease, s.spec, meta, h.refs}
  if not h.input then reply[5] = '' end
  for _, value in ipairs(values) do reply[#reply + 1] = value end
  return reply
end

-- Read all that a claim needs of a step and its job, except the values; nil if the job's keys have expired.
local function read_step(job, step)
  local header, spec, epoch, attempts, ready_at, pending, deadline, priority, agent, name, stream, session, failures, losses_before, deaths,
    timeout, tokens, chain, working = unpack(C('HMGET', job_key(job), 'header:' .. step, 'spec:' .. step, 'epoch:' .. step, 'attempts:' .. step,
    'ready_at:' .. step, 'pending:' .. step, 'deadline', 'priority', 'agent', 'name', 'stream', 'session', 'failures:' .. step,
    'losses:' .. step, 'deaths:' .. step, 'queue_timeout', 'tokens:' .. step, 'chain:' .. step, 'working'))
  if not header then return nil end
  return {header = header, spec = spec, epoch = epoch or '0', attempts = tonumber(attempts or 0), ready_at = ready_at, pending = pending,
    deadline = deadline, priority = priority, agent = agent, name = name, stream = stream, session = session, failures = failures or '0',
    losses = losses_before or '0', deaths = deaths or '0', timeout = timeout, tokens = tokens, chain = chain,
    working = working}
end

local function open_lease(job, step, seat, slot, nonce, reserved, s)
  local attempt = int_text(s.attempts + 1)
  local fence = s.epoch .. ':' .. attempt .. ':' .. nonce
  local lease = job .. ':' .. step .. ':' .. fence
  C('HSET', job_key(job), 'lease:' .. step, fence, 'started_at:' .. step, NOW, 'attempts:' .. step, attempt)
  C('ZADD', K .. 'leases', NOW + LEASE, lease)
  C('HSET', K .. 'lease_info', lease, seat .. ' ' .. slot .. ' ' .. reserved)
  if C('HSET', K .. 'slots:' .. seat, slot, lease) == 1 then C('PEXPIRE', K .. 'slots:' .. seat, KEEP) end
  return lease
end

-- On the seat that served a session last, the session's stage goes before others of its agent and class: one of the first eight, unless
-- the very first has waited for AFFINITY.
local function prefer_session(c, seat)
  local sessions = K .. 'sessions:' .. c.agent
  if c.mixed or first_stage(c, seat) <= NOW - AFFINITY or C('EXISTS', sessions) == 0 then return end
  local members, names = C('ZRANGE', K .. 'waiting:' .. c.q .. ':' .. c.cls .. ':' .. c.agent, 0, 7), {}
  if not members[2] then return end
  for i, member in ipairs(members) do
    local session = redis.pcall('HGET', job_key(string.match(member, '^[^:]+')), 'session')
    names[i] = type(session) == 'string' and session or ''  -- a damaged job is dropped when it is its turn
  end
  for i, served_last in ipairs(C('HMGET', sessions, unpack(names))) do
    if served_last == seat then c.step = members[i]; return end
  end
end

-- Remember the seat that serves a session. One whose name begins with '@@' is that of a conversation which its client has not named
-- (gridq/gateway/http/conversation.py): only a seat that keeps prompts is worth going back to. Sessions are hints: if there are too many,
-- all are forgotten at once.
local function remember_session(agent, session, seat, keeps_prompts)
  if not keeps_prompts and string.sub(session, 1, 2) == '@@' then return end
  local sessions = K .. 'sessions:' .. agent
  local known = redis.pcall('HLEN', sessions)
  if type(known) ~= 'number' or known > 10000 then C('DEL', sessions) end
  C('HSET', sessions, session, seat)
  C('PEXPIRE', sessions, 600000)
end

-- Return whether a stage has waited for longer than its job allows; if not, stop its timer.
local function has_timed_out(job, step, s)
  if not s.timeout then return false end
  local entry = timeout_entry(job, step, s.epoch, s.attempts)
  if tonumber(C('ZSCORE', K .. 'delays', entry) or FOREVER) <= NOW then return true end
  C('ZREM', K .. 'delays', entry)
  return false
end

-- Read the step that a candidate stands for. Nothing is written. Return {job, step, s (as from read_step), lacks (what has no room for it),
-- is_restarting}. An error: its job's record lacks what each has.
local function read_candidate(best)
  local job, step = string.match(best.step or '', '^([^:]+):(.+)$')
  local s = job and read_step(job, step)
  if not s then return {job = job, step = step} end
  local h = read_header(nil, nil, s.header)
  local is_whole = h.q and s.spec and s.agent and tonumber(s.deadline) and tonumber(s.priority) and tonumber(s.ready_at)
    and (not s.pending or string.find(s.pending, '^%S+ .'))
  if not is_whole then error("its job's record is incomplete", 0) end
  return {job = job, step = step, s = s, lacks = best.lacks(s.tokens),
    is_restarting = is_restarting(job, h.scope, s.working)}
end

-- Claim the best waiting stage that this seat may run. Return the claim, or {why}: none, full, gone, draining, limited, again.
local function claim_stage(seat, incarnation, slot, nonce)
  local live_incarnation, concurrency, own, queues, draining, warm_queues, grid, rpm, quota_rpm, shared, prices, lent_to, hourly_price,
    stage_ms, keeps_prompts, pass_over, warm_since = unpack(C('HMGET', K .. 'seat:' .. seat, 'incarnation', 'concurrency', 'own', 'queues',
    'draining', 'warm', 'grid', 'requests_per_minute', 'quota_requests_per_minute', 'shared_budgets', 'prices', 'lent_to', 'hourly_price',
    'stage_ms', 'keeps_prompts', 'pass_over', 'warm_since'))
  if live_incarnation ~= incarnation or not C('ZSCORE', K .. 'seats', seat) then return {'gone'} end
  local held = C('HGET', K .. 'slots:' .. seat, slot)
  if held then  -- our last reply was lost: the same stage again, so that a repeated claim never takes a second one
    local claim = attempt('slots:' .. seat, held, function()
      local s = C('ZSCORE', K .. 'leases', held) and read_step(parse_lease(held))
      if s then
        C('ZADD', K .. 'leases', NOW + LEASE, held)
        return build_claim(held, 0, s)
      end
      if not stop_remaining(parse_lease(held)) then close_lease(held) end
    end)
    if claim then return claim end
    C('HDEL', K .. 'slots:' .. seat, slot)
  end
  if draining then return {'draining'} end
  local busy = C('HLEN', K .. 'slots:' .. seat)
  if busy >= tonumber(concurrency) then return {'full'} end
  local rate = lower_limit(rpm, quota_rpm)
  if rate and is_rate_used_up(seat, rate) then  -- no wake-ups until its next renewal finds that it may claim again
    for q in words(queues) do C('ZREM', K .. 'idle:' .. q, seat) end
    return {'limited'}
  end
  local budgets, times, tight = budgets_of_seat(seat, own, grid, shared, prices, hourly_price, stage_ms), {}, {}
  local warm, patience = {}, {}
  for q in words(warm_queues) do warm[q] = true end
  for q, ms in string.gmatch(pass_over or '', '(%S+)=(%d+)') do patience[q] = tonumber(ms) end
  for _ = 1, 32 do
    local best, cut
    local urgent = FOREVER  -- the priority of the most urgent stage that waits until the loaded models are not in use
    for q in words(queues) do
      for _, cls in ipairs(redis.pcall('HKEYS', K .. 'classes:' .. q)) do  -- of a damaged queue, which sweeps report: none
        local priority, cost, excluded = string.match(cls, '^(%d+)/([^|]*)|(.*)$')
        if not is_excluded(excluded, seat) and not find_shortage(budgets, q, cost) then
          local function lacks(tokens) return find_shortage(budgets, q, cost, tokens) end
          local mixed = excluded == '*' or tight[q .. cls] or false
          local c, failed = attempt('classes:' .. q, cls, function()
            return find_candidate(q, cls, tonumber(priority), cost, mixed, seat, times, lent_to, lacks)
          end)
          if failed then C('HDEL', K .. 'classes:' .. q, cls) end
          if c == false then cut = true elseif c then
            c.warm, c.patience, c.since = warm[q] or false, patience[q] or AFFINITY, patience[q] and tonumber(warm_since) or 0
            -- It would hold a slot while it waits for their memory.
            if patience[q] and busy > 0 and is_patient(c, seat) then urgent = math.min(urgent, c.priority)
            elseif not best or goes_before(c, best, seat) then best = c end
          end
        end
      end
    end
    if not best or best.priority > urgent then
      if cut then return {'again'} end
      mark_idle(seat, queues)
      return {'none'}
    end
    first_stage(best, seat)
    prefer_session(best, seat)
    local stage = attempt('waiting:' .. best.q .. ':' .. best.cls .. ':' .. best.agent, best.step or '', function()
      return read_candidate(best)
    end)
    local s = stage and stage.s
    if s and stage.lacks then tight[best.q .. best.cls] = true  -- one behind it may need less
    elseif s and take_out(stage.job, stage.step, {s.pending, s.agent, s.chain}) then
      -- Else it is only taken out: the sweep ends the job, or what restarts its Retry makes it ready again.
      local job, step = stage.job, stage.step
      if tonumber(s.deadline) > NOW and not has_timed_out(job, step, s) and not stage.is_restarting then
        local reserved = '0'
        if budgets then
          local tokens, estimate, gpu_ms = estimate_use(budgets, best.q, s.tokens)
          local money, request = math.max(tonumber(best.cost), estimate), is_free(best.q) and 0 or 1
          update_budgets(budgets, best.q, {money = money, tokens = tokens, requests = request, parallel = request, gpu_seconds = gpu_ms},
            {})
          reserved = int_text(money) .. ' ' .. int_text(tokens) .. ' ' .. request .. (gpu_ms and ' ' .. int_text(gpu_ms) or '') .. ' '
            .. shared_names(budgets, best.q)
        end
        local lease = open_lease(job, step, seat, slot, nonce, reserved, s)
        if s.session then remember_session(s.agent, s.session, seat, keeps_prompts) end
        if rate then count_claim(seat, rate) end
        C('HSET', K .. 'virtual_time:' .. best.kind, '*', math.max(best.v, best.level), '*' .. best.q, best.v, best.agent,
          best.v + weight(best.cost))
        if C('EXISTS', K .. 'classes:' .. best.q) == 1 then wake_seat(best.q) end  -- wake one more
        return build_claim(lease, NOW - tonumber(s.ready_at), s)
      end
    else
      drop_entry(best)
    end
  end
  return {'again'}
end

-- Return whether the slot may open a lease outside of claim_stage: a late caller's seat may belong to another incarnation now.
local function may_claim(seat, incarnation, slot)
  local live_incarnation, concurrency, draining = unpack(C('HMGET', K .. 'seat:' .. seat, 'incarnation', 'concurrency', 'draining'))
  local slots = K .. 'slots:' .. seat
  return live_incarnation == incarnation and not draining and C('ZSCORE', K .. 'seats', seat) and C('HEXISTS', slots, slot) == 0
    and C('HLEN', slots) < tonumber(concurrency)
end

-- Claim a pure step that a completion made ready, for the slot that completed, whatever its seat serves.
local function claim_pure(job, step, seat, slot, nonce)
  local s = read_step(job, step)
  return build_claim(open_lease(job, step, seat, slot, nonce, 0, s), 0, s)
end
