-- Claiming: used by claim.lua, and by complete.lua, which goes on with the next stage.

-- Build a claim, {lease, spec, meta, refs, input, value …}. meta is 'wait_ms stream remaining_ms priority queue agent now_ms failures
-- losses deaths name'. A skipped step has no output: its place is nil.
local function build_claim(lease, wait_ms, s)
  local job = parse_lease(lease)
  local h = read_header(nil, nil, s.header)
  local meta = wait_ms .. ' ' .. (s.stream or '0') .. ' ' .. (s.deadline - NOW) .. ' ' .. s.priority .. ' ' .. h.q .. ' ' .. s.agent .. ' '
    .. NOW .. ' ' .. s.failures .. ' ' .. s.losses .. ' ' .. s.deaths .. ' ' .. (s.name or '')
  local fields = h.input and {'input'} or {}
  if h.refs ~= '-' then
    for ref in string.gmatch(h.refs, '[^,]+') do fields[#fields + 1] = 'output:' .. ref end
  end
  local reply = {lease, s.spec, meta, h.refs}
  if not h.input then reply[5] = '' end
  for i = 1, #fields, 2000 do
    for _, value in ipairs(C('HMGET', job_key(job), unpack(fields, i, math.min(i + 1999, #fields)))) do reply[#reply + 1] = value end
  end
  return reply
end

-- Read all that a claim needs of a step and its job, except the values; nil if the job's keys have expired.
local function read_step(job, step)
  local header, spec, epoch, attempts, ready_at, pending, deadline, priority, agent, name, stream, session, failures, losses_before, deaths,
    timeout, tokens, chain = unpack(C('HMGET', job_key(job), 'header:' .. step, 'spec:' .. step, 'epoch:' .. step, 'attempts:' .. step,
    'ready_at:' .. step, 'pending:' .. step, 'deadline', 'priority', 'agent', 'name', 'stream', 'session', 'failures:' .. step,
    'losses:' .. step, 'deaths:' .. step, 'queue_timeout', 'tokens:' .. step, 'chain:' .. step))
  if not header then return nil end
  return {header = header, spec = spec, epoch = epoch or '0', attempts = tonumber(attempts or 0), ready_at = ready_at, pending = pending,
    deadline = deadline, priority = priority, agent = agent, name = name, stream = stream, session = session, failures = failures or '0',
    losses = losses_before or '0', deaths = deaths or '0', timeout = timeout, tokens = tokens, chain = chain}
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

-- Return the first members of a sorted set and some from further on, other ones each time: where each must be checked, none stays hidden.
local function sample(key)
  local found, n = C('ZRANGE', key, 0, 7), C('ZCARD', key)
  local from = n > 8 and 8 + NOW % (n - 8) or n
  for _, member in ipairs(C('ZRANGE', key, from, from + 7)) do found[#found + 1] = member end
  return found
end

-- Find the first stage of a candidate's agent that this seat may run (c.step, c.score). Return its ready time, FOREVER if there is none.
local function first_stage(c, seat)
  if c.step == nil then
    local waiting = K .. 'waiting:' .. c.q .. ':' .. c.cls .. ':' .. c.agent
    c.step = false
    if not c.mixed then
      local first = C('ZRANGE', waiting, 0, 0, 'WITHSCORES')
      if first[1] then c.step, c.score = first[1], tonumber(first[2]) end
    else
      for _, member in ipairs(sample(waiting)) do
        local job, step = string.match(member, '^([^:]+):(.+)$')
        local excluded, charged_team, team, tokens = unpack(C('HMGET', job_key(job), 'excluded:' .. step, 'charged_team', 'team',
          'tokens:' .. step))
        if not is_excluded(excluded or '', seat) and is_lent_to(c.only, c.agent, charged_team or team) and not c.lacks(tokens) then
          c.step, c.score = member, tonumber(C('ZSCORE', waiting, member))
          break
        end
      end
    end
  end
  return c.score or FOREVER
end

-- Return whether candidate a goes before b: by priority; then one whose model is loaded here, unless the other has waited for WARM_WAIT;
-- then by their agents' virtual time (relative to the kind's, for each kind has its own), then by ready time.
local function goes_before(a, b, seat)
  if a.priority ~= b.priority then return a.priority < b.priority end
  if a.warm ~= b.warm and first_stage(a.warm and b or a, seat) > NOW - WARM_WAIT then return a.warm end
  if a.turn ~= b.turn then return a.turn < b.turn end
  return first_stage(a, seat) < first_stage(b, seat)
end

-- Return an agent's virtual time ('*': the kind's own). Read once in a claim, kept in `times`.
local function read_virtual_time(times, kind, agent)
  local id = kind .. ' ' .. agent
  if not times[id] then
    local own, level = unpack(C('HMGET', K .. 'virtual_time:' .. kind, agent, '*'))
    times[id], times[kind .. ' *'] = tonumber(own or 0), tonumber(level or 0)
  end
  return times[id]
end

-- Return the waiting agents of a class to whom a seat is lent by name, in their turn; then a sample of the others.
local function agents_by_name(only, ready)
  local named = {}
  for account in words(only) do
    local v = string.sub(account, 1, 2) == 'a:' and C('ZSCORE', ready, string.sub(account, 3))
    if v then named[#named + 1] = {tonumber(v), string.sub(account, 3)} end
  end
  table.sort(named, function(a, b) return a[1] < b[1] end)
  for i = 1, #named do named[i] = named[i][2] end
  for _, agent in ipairs(sample(ready)) do named[#named + 1] = agent end
  return named
end

-- In a class of mixed exclusions the first agent may have nothing for this seat, but another may.
local function other_agent(first, ready, seat)
  for _, agent in ipairs(first.only and agents_by_name(first.only, ready) or sample(ready)) do
    local v = tonumber(C('HGET', K .. 'virtual_time:' .. first.kind, agent) or 0)
    local c = {v = v, turn = v - first.level, level = first.level, q = first.q, cls = first.cls, agent = agent,
      cost = first.cost, kind = first.kind, mixed = true, only = first.only, priority = first.priority, lacks = first.lacks}
    if first_stage(c, seat) < FOREVER then return c end
  end
  return nil
end

-- Return the agent whose turn it is in one class of one queue, as a candidate; nil if there is none, false if the search would have to go
-- further than its bound. `only`: the only ones the seat is lent to; an agent named there needs no check of its stages. `lacks(tokens)`:
-- what has no room for a stage of this estimate.
local function find_candidate(q, cls, priority, cost, mixed, seat, times, only, lacks)
  local kind = string.match(q, '^[^:]+')
  local ready = K .. 'ready:' .. q .. ':' .. cls
  for _ = 1, 64 do
    local two = C('ZRANGE', ready, 0, 1, 'WITHSCORES')
    local agent = two[1]
    if not agent then return nil end
    local v = read_virtual_time(times, kind, agent)
    if v > tonumber(two[2]) then
      C('ZADD', ready, v, agent)  -- it was served in another class since: virtual times only grow
      if two[3] and v > tonumber(two[4]) then  -- then it is the turn of the next, if that one was not served too
        agent, v = two[3], read_virtual_time(times, kind, two[3])
        if v > tonumber(two[4]) then agent = nil end
      end
    end
    if agent then
      local level = read_virtual_time(times, kind, '*')
      local c = {v = v, turn = v - level, level = level, q = q, cls = cls, agent = agent, cost = cost, kind = kind,
        mixed = mixed or not is_lent_to(only, agent), only = only, priority = priority, lacks = lacks}
      if c.mixed and first_stage(c, seat) == FOREVER then c = other_agent(c, ready, seat) end
      if not c then return nil end
      if priority > 0 and first_stage(c, seat) <= NOW - BATCH_AGE then c.priority = 0 end  -- batch work that has waited long enough
      return c
    end
  end
  return false
end

-- On the seat that served a session last, the session's stage goes before others of its agent and class: one of the first eight, unless
-- the very first has waited for WARM_WAIT.
local function prefer_session(c, seat)
  local sessions = K .. 'sessions:' .. c.agent
  if c.mixed or first_stage(c, seat) <= NOW - WARM_WAIT or C('EXISTS', sessions) == 0 then return end
  for _, member in ipairs(C('ZRANGE', K .. 'waiting:' .. c.q .. ':' .. c.cls .. ':' .. c.agent, 0, 7)) do
    local session = C('HGET', job_key(string.match(member, '^[^:]+')), 'session')
    if session and C('HGET', sessions, session) == seat then c.step = member; return end
  end
end

-- Sessions are hints: if there are too many, all are forgotten at once.
local function remember_session(agent, session, seat)
  local sessions = K .. 'sessions:' .. agent
  if C('HLEN', sessions) > 10000 then C('DEL', sessions) end
  C('HSET', sessions, session, seat)
  C('PEXPIRE', sessions, 600000)
end

-- Drop an entry whose job's keys have expired.
local function drop_entry(c)
  local waiting, classes = K .. 'waiting:' .. c.q .. ':' .. c.cls .. ':' .. c.agent, K .. 'classes:' .. c.q
  if c.step and C('ZREM', waiting, c.step) == 1 and C('HINCRBY', classes, c.cls, -1) <= 0 then C('HDEL', classes, c.cls) end
  if C('EXISTS', waiting) == 0 then C('ZREM', K .. 'ready:' .. c.q .. ':' .. c.cls, c.agent) end
end

-- Return whether a stage has waited for longer than its job allows; if not, stop its timer.
local function has_timed_out(job, step, s)
  if not s.timeout then return false end
  local entry = timeout_entry(job, step, s.epoch, s.attempts)
  if tonumber(C('ZSCORE', K .. 'delays', entry) or FOREVER) <= NOW then return true end
  C('ZREM', K .. 'delays', entry)
  return false
end

-- Claim the best waiting stage that this seat may run. Return the claim, or {why}: none, full, gone, draining, limited, again.
local function claim_stage(seat, incarnation, slot, nonce)
  local live_incarnation, concurrency, own, queues, draining, warm_queues, grid, rpm, quota_rpm, shared, prices, lent_to, hourly_price,
    stage_ms = unpack(C('HMGET', K .. 'seat:' .. seat, 'incarnation', 'concurrency', 'own', 'queues', 'draining', 'warm', 'grid',
    'requests_per_minute', 'quota_requests_per_minute', 'shared_budgets', 'prices', 'lent_to', 'hourly_price', 'stage_ms'))
  if live_incarnation ~= incarnation or not C('ZSCORE', K .. 'seats', seat) then return {'gone'} end
  local held = C('HGET', K .. 'slots:' .. seat, slot)
  if held then  -- our last reply was lost: the same stage again, so that a repeated claim never takes a second one
    local s = C('ZSCORE', K .. 'leases', held) and read_step(parse_lease(held))
    if s then
      C('ZADD', K .. 'leases', NOW + LEASE, held)
      return build_claim(held, 0, s)
    end
    close_lease(held)
    C('HDEL', K .. 'slots:' .. seat, slot)
  end
  if draining then return {'draining'} end
  if C('HLEN', K .. 'slots:' .. seat) >= tonumber(concurrency) then return {'full'} end
  local rate = lower_limit(rpm, quota_rpm)
  if rate and is_rate_used_up(seat, rate) then  -- no wake-ups until its next renewal finds that it may claim again
    for q in words(queues) do C('ZREM', K .. 'idle:' .. q, seat) end
    return {'limited'}
  end
  local budgets, times, warm, tight = budgets_of_seat(seat, own, grid, shared), {}, {}, {}
  for q in words(warm_queues) do warm[q] = true end
  for _ = 1, 32 do
    local best, cut
    for q in words(queues) do
      for _, cls in ipairs(C('HKEYS', K .. 'classes:' .. q)) do
        local priority, cost, excluded = string.match(cls, '^(%d+)/([^|]*)|(.*)$')
        if not is_excluded(excluded, seat) and not find_shortage(budgets, q, tonumber(cost)) then
          local function lacks(tokens)
            if budgets then
              return find_shortage(budgets, q, tonumber(cost), estimate_use(tokens, q, prices, hourly_price, stage_ms))
            end
          end
          local mixed = excluded == '*' or tight[q .. cls] or false
          local c = find_candidate(q, cls, tonumber(priority), cost, mixed, seat, times, lent_to, lacks)
          if c == false then cut = true elseif c then
            c.warm = warm[q] or false
            if not best or goes_before(c, best, seat) then best = c end
          end
        end
      end
    end
    if not best then
      if cut then return {'again'} end
      mark_idle(seat, queues)
      return {'none'}
    end
    first_stage(best, seat)
    prefer_session(best, seat)
    local job, step = string.match(best.step or '', '^([^:]+):(.+)$')
    local s = job and read_step(job, step)
    if s and best.lacks(s.tokens) then tight[best.q .. best.cls] = true  -- one behind it may need less
    elseif s and take_out(job, step, {s.pending, s.agent, s.chain}) then
      if tonumber(s.deadline) > NOW and not has_timed_out(job, step, s) then  -- else it is only taken out: the sweep ends the job
        local reserved = '0'
        if budgets then
          local tokens, estimate = estimate_use(s.tokens, best.q, prices, hourly_price, stage_ms)
          local money, request = math.max(tonumber(best.cost), estimate), is_free(best.q) and 0 or 1
          update_budgets(budgets, best.q, {money = money, tokens = tokens, requests = request, parallel = request}, {})
          reserved = int_text(money) .. ' ' .. int_text(tokens) .. ' ' .. request .. ' ' .. shared_names(budgets, best.q)
        end
        local lease = open_lease(job, step, seat, slot, nonce, reserved, s)
        if s.session then remember_session(s.agent, s.session, seat) end
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
