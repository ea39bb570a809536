-- Claiming: used by claim and by complete, which goes on with the next stage.

-- What the claimant needs: {lease, spec, meta, refs, input, value …}; meta = wait_ms stream remaining_ms prio queue agent
-- now_ms failures losses deaths name.
-- A step that was skipped has no output: its place is nil.
local function build_claim(lease, wait, s)
  local job = parse_lease(lease)
  local h = read_header(nil, nil, s.header)
  local meta = wait .. ' ' .. (s.stream or '0') .. ' ' .. (s.dl - NOW) .. ' ' .. s.prio .. ' ' .. h.q .. ' ' .. s.agent .. ' ' .. NOW .. ' ' .. s.fails .. ' '
    .. s.losses .. ' ' .. s.deaths .. ' ' .. (s.name or '')
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

-- All that a claim reads of a step and its job, but the values it takes; nil where the job's keys expired.
local function read_step(job, step)
  local f = C('HMGET', job_key(job), 'header:' .. step, 'spec:' .. step, 'epoch:' .. step, 'attempts:' .. step, 'ready_at:' .. step, 'pending:' .. step, 'deadline',
    'priority', 'agent', 'name', 'stream', 'session', 'failures:' .. step, 'losses:' .. step, 'deaths:' .. step, 'queue_timeout', 'tokens:' .. step,
    'chain:' .. step)
  if not f[1] then return nil end
  return {header = f[1], spec = f[2], epoch = f[3] or '0', attempts = tonumber(f[4] or 0), ready = f[5], at = f[6], dl = f[7],
    prio = f[8], agent = f[9], name = f[10], stream = f[11], session = f[12], fails = f[13] or '0', losses = f[14] or '0', deaths = f[15] or '0', timeout = f[16], tokens = f[17],
    chain = f[18]}
end

local function open_lease(job, step, seat, slot, nonce, hold, s)
  local attempt = int_text(s.attempts + 1)
  local rest = s.epoch .. ':' .. attempt .. ':' .. nonce
  local lease = job .. ':' .. step .. ':' .. rest
  C('HSET', job_key(job), 'lease:' .. step, rest, 'started_at:' .. step, NOW, 'attempts:' .. step, attempt)
  C('ZADD', K .. 'leases', NOW + LEASE, lease)
  C('HSET', K .. 'lease_info', lease, seat .. ' ' .. slot .. ' ' .. hold)
  if C('HSET', K .. 'slots:' .. seat, slot, lease) == 1 then C('PEXPIRE', K .. 'slots:' .. seat, KEEP) end
  return lease
end

-- The first of a sorted set and some from further on, elsewhere each time: where each must be looked at, none stays hidden.
local function sample(key)
  local found, n = C('ZRANGE', key, 0, 7), C('ZCARD', key)
  local from = n > 8 and 8 + NOW % (n - 8) or n
  for _, m in ipairs(C('ZRANGE', key, from, from + 7)) do found[#found + 1] = m end
  return found
end

local function first_stage(c, seat)  -- the first stage of a candidate's agent that this seat may run
  if c.step == nil then
    local w = K .. 'waiting:' .. c.q .. ':' .. c.cls .. ':' .. c.agent
    c.step = false
    if not c.mixed then
      local first = C('ZRANGE', w, 0, 0, 'WITHSCORES')
      if first[1] then c.step, c.score = first[1], tonumber(first[2]) end
    else
      for _, m in ipairs(sample(w)) do
        local job, step = string.match(m, '^([^:]+):(.+)$')
        local f = C('HMGET', job_key(job), 'excluded:' .. step, 'charged_team', 'team', 'tokens:' .. step)
        if not is_excluded(f[1] or '', seat) and is_lent_to(c.only, c.agent, f[2] or f[3]) and not c.lacks(f[4]) then
          c.step, c.score = m, tonumber(C('ZSCORE', w, m))
          break
        end
      end
    end
  end
  return c.score or FOREVER
end

-- Whether candidate a goes before b: its class first; then one whose model is loaded here, as long as the other has not waited
-- HOLD for it; then its agent's virtual time (from its kind's own, for each kind has a clock), then its own first ready time.
local function goes_before(a, b, seat)
  if a.prio ~= b.prio then return a.prio < b.prio end
  if a.warm ~= b.warm and first_stage(a.warm and b or a, seat) > NOW - WARM_WAIT then return a.warm end
  if a.turn ~= b.turn then return a.turn < b.turn end
  return first_stage(a, seat) < first_stage(b, seat)
end

-- An agent's virtual time, '*': its kind's own. Asked once in a claim, kept in `clock`.
local function read_virtual_time(clock, kind, agent)
  local id = kind .. ' ' .. agent
  if not clock[id] then
    local times = C('HMGET', K .. 'virtual_time:' .. kind, agent, '*')
    clock[id], clock[kind .. ' *'] = tonumber(times[1] or 0), tonumber(times[2] or 0)
  end
  return clock[id]
end

-- Those who wait in a class and whom a seat is lent to by name, whose turn it is first; then some others.
local function agents_by_name(only, rdy)
  local named = {}
  for who in words(only) do
    local v = string.sub(who, 1, 2) == 'a:' and C('ZSCORE', rdy, string.sub(who, 3))
    if v then named[#named + 1] = {tonumber(v), string.sub(who, 3)} end
  end
  table.sort(named, function(a, b) return a[1] < b[1] end)
  for i = 1, #named do named[i] = named[i][2] end
  for _, agent in ipairs(sample(rdy)) do named[#named + 1] = agent end
  return named
end

-- In a class of mixed exclusions the first agent may have nothing for this seat, yet another may.
local function other_agent(first, rdy, seat)
  for _, agent in ipairs(first.only and agents_by_name(first.only, rdy) or sample(rdy)) do
    local v = tonumber(C('HGET', K .. 'virtual_time:' .. first.kind, agent) or 0)
    local c = {v = v, turn = v - first.system, system = first.system, q = first.q, cls = first.cls, agent = agent,
      cost = first.cost, kind = first.kind, mixed = true, only = first.only, prio = first.prio, lacks = first.lacks}
    if first_stage(c, seat) < FOREVER then return c end
  end
  return nil
end

-- The agent whose turn it is in one class of one queue, as a candidate; nil where there is none, false where more than a
-- bounded look would be needed. `only`: whom the seat is lent to alone. An agent whom it names needs no look at its stages.
-- `lacks`: of a stage that will use so many tokens, what has no room for it.
local function find_candidate(q, cls, prio, cost, mixed, seat, clock, only, lacks)
  local kind = string.match(q, '^[^:]+')
  local rdy = K .. 'ready:' .. q .. ':' .. cls
  for _ = 1, 64 do
    local two = C('ZRANGE', rdy, 0, 1, 'WITHSCORES')
    local agent = two[1]
    if not agent then return nil end
    local v = read_virtual_time(clock, kind, agent)
    if v > tonumber(two[2]) then
      C('ZADD', rdy, v, agent)  -- served elsewhere since: virtual times only grow
      if two[3] and v > tonumber(two[4]) then  -- then it is the turn of the next, if that one was not
        agent, v = two[3], read_virtual_time(clock, kind, two[3])
        if v > tonumber(two[4]) then agent = nil end
      end
    end
    if agent then
      local system = read_virtual_time(clock, kind, '*')
      local c = {v = v, turn = v - system, system = system, q = q, cls = cls, agent = agent, cost = cost, kind = kind,
        mixed = mixed or not is_lent_to(only, agent), only = only, prio = prio, lacks = lacks}
      if c.mixed and first_stage(c, seat) == FOREVER then c = other_agent(c, rdy, seat) end
      if not c then return nil end
      if prio > 0 and first_stage(c, seat) <= NOW - BATCH_AGE then c.prio = 0 end  -- batch work that has waited long enough is as good
      return c
    end
  end
  return false
end

-- A session's stage goes before others of its agent and class on the seat that served the session last: one of the first
-- eight, as long as the very first has not waited HOLD for it.
local function prefer_session(c, seat)
  local seats = K .. 'sessions:' .. c.agent
  if c.mixed or first_stage(c, seat) <= NOW - WARM_WAIT or C('EXISTS', seats) == 0 then return end
  for _, m in ipairs(C('ZRANGE', K .. 'waiting:' .. c.q .. ':' .. c.cls .. ':' .. c.agent, 0, 7)) do
    local session = C('HGET', job_key(string.match(m, '^[^:]+')), 'session')
    if session and C('HGET', seats, session) == seat then c.step = m; return end
  end
end

-- Sessions are hints: too many of them are forgotten all at once.
local function remember_session(agent, session, seat)
  local seats = K .. 'sessions:' .. agent
  if C('HLEN', seats) > 10000 then C('DEL', seats) end
  C('HSET', seats, session, seat)
  C('PEXPIRE', seats, 600000)
end

local function drop_entry(c)  -- the job of the chosen entry is gone (its keys expired): drop the entry itself
  local w = K .. 'waiting:' .. c.q .. ':' .. c.cls .. ':' .. c.agent
  if c.step and C('ZREM', w, c.step) == 1 and C('HINCRBY', K .. 'classes:' .. c.q, c.cls, -1) <= 0 then
    C('HDEL', K .. 'classes:' .. c.q, c.cls)
  end
  if C('EXISTS', w) == 0 then C('ZREM', K .. 'ready:' .. c.q .. ':' .. c.cls, c.agent) end
end

-- Whether a stage has waited for longer than its job lets it; if not, its timer is stopped.
local function has_timed_out(job, step, s)
  if not s.timeout then return false end
  local entry = timeout_entry(job, step, s.epoch, s.attempts)
  if tonumber(C('ZSCORE', K .. 'delays', entry) or FOREVER) <= NOW then return true end
  C('ZREM', K .. 'delays', entry)
  return false
end

-- The best pending stage that this seat may run. Returns give's reply, or {why}: none, full, gone, draining, limited, again.
local function claim_stage(seat, inc, slot, nonce)
  local S = C('HMGET', K .. 'seat:' .. seat, 'incarnation', 'concurrency', 'own', 'queues', 'draining', 'warm', 'grid', 'requests_per_minute', 'quota_requests_per_minute', 'shared_budgets', 'prices',
    'lent_to', 'hourly_price', 'stage_ms')
  if S[1] ~= inc or not C('ZSCORE', K .. 'seats', seat) then return {'gone'} end
  local mine = C('HGET', K .. 'slots:' .. seat, slot)
  if mine then  -- our last reply was lost: the same stage again, so that a repeated claim never takes a second one
    local s = C('ZSCORE', K .. 'leases', mine) and read_step(parse_lease(mine))
    if s then
      C('ZADD', K .. 'leases', NOW + LEASE, mine)
      return build_claim(mine, 0, s)
    end
    close_lease(mine)
    C('HDEL', K .. 'slots:' .. seat, slot)
  end
  if S[5] then return {'draining'} end
  if C('HLEN', K .. 'slots:' .. seat) >= tonumber(S[2]) then return {'full'} end
  local rate = lower_limit(S[8], S[9])
  if rate and is_rate_used_up(seat, rate) then  -- it is rung for nothing until its next renewal finds that it may again
    for q in words(S[4]) do C('ZREM', K .. 'idle:' .. q, seat) end
    return {'limited'}
  end
  local bill, clock, warm, tight = budgets_of_seat(seat, S[3], S[7], S[10]), {}, {}, {}
  for q in words(S[6]) do warm[q] = true end
  for _ = 1, 32 do
    local best, cut
    for q in words(S[4]) do
      for _, cls in ipairs(C('HKEYS', K .. 'classes:' .. q)) do
        local prio, cost, x = string.match(cls, '^(%d+)/([^|]*)|(.*)$')
        if not is_excluded(x, seat) and not find_shortage(bill, q, tonumber(cost)) then
          local function lacks(told)
            if bill then return find_shortage(bill, q, tonumber(cost), estimate_use(told, q, S[11], S[13], S[14])) end
          end
          local c = find_candidate(q, cls, tonumber(prio), cost, x == '*' or tight[q .. cls] or false, seat, clock, S[12], lacks)
          if c == false then cut = true elseif c then
            c.warm = warm[q] or false
            if not best or goes_before(c, best, seat) then best = c end
          end
        end
      end
    end
    if not best then
      if cut then return {'again'} end
      mark_idle(seat, S[4])
      return {'none'}
    end
    first_stage(best, seat)
    prefer_session(best, seat)
    local job, step = string.match(best.step or '', '^([^:]+):(.+)$')
    local s = job and read_step(job, step)
    if s and best.lacks(s.tokens) then tight[best.q .. best.cls] = true  -- one behind it may want less
    elseif s and take_out(job, step, {s.at, s.agent, s.chain}) then
      if tonumber(s.dl) > NOW and not has_timed_out(job, step, s) then  -- else it is only taken out: the sweep ends the job
        local hold = '0'
        if bill then
          local tokens, guess = estimate_use(s.tokens, best.q, S[11], S[13], S[14])
          local money, request = math.max(tonumber(best.cost), guess), is_free(best.q) and 0 or 1
          update_budgets(bill, best.q, {money = money, tokens = tokens, requests = request, parallel = request}, {})
          hold = int_text(money) .. ' ' .. int_text(tokens) .. ' ' .. request .. ' ' .. shared_names(bill, best.q)
        end
        local lease = open_lease(job, step, seat, slot, nonce, hold, s)
        if s.session then remember_session(s.agent, s.session, seat) end
        if rate then count_claim(seat, rate) end
        C('HSET', K .. 'virtual_time:' .. best.kind, '*', math.max(best.v, best.system), '*' .. best.q, best.v, best.agent,
          best.v + weight(best.cost))
        if C('EXISTS', K .. 'classes:' .. best.q) == 1 then wake_seat(best.q) end  -- wake one more
        return build_claim(lease, NOW - tonumber(s.ready), s)
      end
    else
      drop_entry(best)
    end
  end
  return {'again'}
end

-- Whether the slot may open a lease outside of `take`: a late caller's seat may have passed on to another incarnation.
local function may_claim(seat, inc, slot)
  local S, held = C('HMGET', K .. 'seat:' .. seat, 'incarnation', 'concurrency', 'draining'), K .. 'slots:' .. seat
  return S[1] == inc and not S[3] and C('ZSCORE', K .. 'seats', seat) and C('HEXISTS', held, slot) == 0
    and C('HLEN', held) < tonumber(S[2])
end

-- A pure step that a completion made ready, taken by the completing slot at once, whatever its seat serves.
local function claim_pure(job, step, seat, slot, nonce)
  local s = read_step(job, step)
  return build_claim(open_lease(job, step, seat, slot, nonce, 0, s), 0, s)
end
