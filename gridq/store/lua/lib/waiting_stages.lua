-- Where ready stages wait, and the wake-ups that bring workers to them.
--
-- A class holds the stages of a queue that the same seats may take, so that a seat passes over it whole. Its name is
-- 'priority/cost|excluded seats'. classes:<queue> counts the stages in each class; ready:<queue>:<class> orders its agents by virtual
-- time; waiting:<queue>:<class>:<agent> orders the agent's stages ('job:step') by the time they became ready.

-- Return by how much a claim of this cost moves its agent's virtual time: one stage, plus one for each cent.
local function weight(cost) return 1 + tonumber(cost) / 10000 end

local function send_wake_up(key, queue, template)
  local id = 'wake_up-' .. C('INCR', K .. 'wake_up_number')
  local message = string.gsub(C('HGET', K .. 'wake_ups', template) or '', '@@(%u+)@@', {ID = id, QUEUE = queue})
  if message == '' then return 0 end
  if C('LPUSH', key, message) == 1 then C('PEXPIRE', key, 3600000) end
  return 1
end

-- Put a seat among those that can be woken, at each queue that it serves: the best rank first, the least recently used on ties. A seat
-- without a rank gets the last rank ('*'); in a queue without ranks all are alike.
local function mark_idle(seat, queues)
  for q in words(queues) do
    local rank = C('ZMSCORE', K .. 'rank:' .. q, seat, '*')
    C('ZADD', K .. 'idle:' .. q, (tonumber(rank[1] or rank[2]) or 0) * 1e13 + NOW, seat)
  end
end

-- Return the seats where a stage of this queue would find its model loaded, after the one that its submitter prefers or that knows its
-- session.
local function preferred_seats(q, first)
  local seats = C('ZRANGE', K .. 'warm:' .. q, 0, 3)
  if first then table.insert(seats, 1, first) end
  return seats
end

-- Send a wake-up for one stage: to a preferred seat that is idle, else to the best-ranked idle seat, else to the capability's queue, which
-- never holds more wake-ups than slots listen to it. A wake-up is a hint: a busy seat leaves the idle set and comes back with its next free
-- slot. If the stage's excluded seats, cost, tokens and agent are known, a seat that could not take it is passed over. `first`: the seat to
-- wake first.
local function wake_seat(q, excluded, cost, first, agent, team, tokens)
  local idle = K .. 'idle:' .. q
  local seats = {}
  local function read_seat(seat)
    local f = C('HMGET', K .. 'seat:' .. seat, 'concurrency', 'own', 'grid', 'lent_to', 'shared_budgets', 'prices', 'hourly_price', 'stage_ms')
    local budgets = cost and budgets_of_seat(seat, f[2], f[3], f[5], f[6], f[7], f[8])
    return {concurrency = tonumber(f[1] or 0), lent_to = f[4], budgets = budgets}
  end
  for _, seat in ipairs(preferred_seats(q, first)) do if C('ZSCORE', idle, seat) then seats[#seats + 1] = seat end end
  for _, seat in ipairs(C('ZRANGE', idle, 0, 15)) do seats[#seats + 1] = seat end
  local spare
  for _, seat in ipairs(seats) do
    local record = attempt('idle:' .. q, seat, read_seat)
    if not record then C('ZREM', idle, seat)
    elseif not find_shortage(record.budgets, q, cost, tokens) and not (excluded and is_excluded(excluded, seat))
      and (not agent or is_lent_to(record.lent_to, agent, team)) then
      local queue, concurrency = P .. 'seat:' .. seat, record.concurrency
      local taken = C('LLEN', queue) + C('HLEN', K .. 'slots:' .. seat)
      if record.lent_to and not agent and taken < concurrency then  -- the stage's agent is not known: a lent seat comes last
        spare = spare or {seat, queue, taken + 1 >= concurrency}
      else
        if taken + 1 >= concurrency then C('ZREM', idle, seat) end
        if taken < concurrency then return send_wake_up(queue, 'seat:' .. seat, 'stage') end
      end
    end
  end
  if spare then
    if spare[3] then C('ZREM', idle, spare[1]) end
    return send_wake_up(spare[2], 'seat:' .. spare[1], 'stage')
  end
  local concurrency = tonumber(C('HGET', K .. 'concurrency', q) or 0)
  if concurrency < 1 then concurrency = 1 end
  if C('LLEN', P .. q) < concurrency then return send_wake_up(P .. q, q, 'stage') end
  return 0
end

-- Wake a seat for each of these queues (space separated) in which stages wait.
local function wake_queues(queues)
  for q in words(queues) do if C('EXISTS', K .. 'classes:' .. q) == 1 then wake_seat(q) end end
end

-- Return the entry in `delays` that ends a job whose stage waits for longer than its queue timeout. It names the epoch and the number of
-- claims, so a stage that is ready again has the whole time again, and one that only changes its class does not.
local function timeout_entry(job, step, epoch, claims)
  return 'queue_timeout:' .. job .. ':' .. step .. ':' .. (epoch or '0') .. '.' .. (claims or '0')
end

-- Make a stage ready. It keeps its first ready time, so a stage that comes back is not put behind the backlog. Sends a wake-up for it, or
-- adds the arguments of wake_seat to `later`.
local function make_ready(job, step, later)
  local j = job_key(job)
  local agent, priority, excluded, ready_at, pending, session, charged_team, header, timeout, epoch, attempts, preferred, team, chain,
    tokens = unpack(C('HMGET', j, 'agent', 'priority', 'excluded:' .. step, 'ready_at:' .. step, 'pending:' .. step, 'session',
    'charged_team', 'header:' .. step, 'queue_timeout', 'epoch:' .. step, 'attempts:' .. step, 'preferred_seat', 'team',
    'chain:' .. step, 'tokens:' .. step))
  if pending then return end
  if chain then header, excluded = place_step(job, step, chain, header, excluded, agent, team) end
  if timeout then C('ZADD', K .. 'delays', 'NX', NOW + timeout, timeout_entry(job, step, epoch, attempts)) end
  local h = read_header(nil, nil, header)
  local q = h.q
  local classes = K .. 'classes:' .. q
  -- In a queue of very many classes the excluded seats of the rest are checked stage by stage: their class has '*' for them.
  local cls = priority .. '/' .. h.cost .. '|' .. (excluded or '')
  if excluded and C('HEXISTS', classes, cls) == 0 and C('HLEN', classes) > 64 then cls = priority .. '/' .. h.cost .. '|*' end
  local waiting = K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent
  ready_at = ready_at or NOW
  local had_waiting = C('EXISTS', classes) == 1
  C('ZADD', waiting, ready_at, job .. ':' .. step)
  if C('HINCRBY', classes, cls, 1) == 1 then C('SADD', K .. 'queues', q) end
  local times = K .. 'virtual_time:' .. string.match(q, '^[^:]+')
  -- An agent that comes late or comes back starts level with those served now: it is neither favoured for its absence nor put behind them.
  -- In a queue where others wait, it is level with those whom that queue serves, which may be slower than others.
  local own, kind_level, queue_level = unpack(C('HMGET', times, agent, '*', '*' .. q))
  local v, level = tonumber(own or 0), tonumber(kind_level or 0)
  if had_waiting and queue_level then level = math.min(level, tonumber(queue_level)) end
  if v < level or not own then v = math.max(v, level); C('HSET', times, agent, v) end
  local ready = K .. 'ready:' .. q .. ':' .. cls
  local parked = charged_team and not is_free(q) and is_over_limit(agent, charged_team)
  if parked then park_class(q, cls, agent, charged_team) else C('ZADD', ready, v, agent) end
  C('HSET', j, 'pending:' .. step, q .. ' ' .. cls, 'ready_at:' .. step, ready_at)
  for _, key in ipairs({waiting, ready, classes, times}) do C('PEXPIRE', key, KEEP) end
  if parked then return end
  local first = preferred or session and C('HGET', K .. 'sessions:' .. agent, session) or nil
  if later then later[#later + 1] = {q, excluded, h.cost, first, agent, team, tokens}
  else wake_seat(q, excluded, h.cost, first, agent, team, tokens) end
end

-- Take a stage out of its pending set; true if it was there. `f`: its job's fields pending:<step>, agent and chain:<step>, if the caller
-- has read them. `j`: the job's record, if it has ended.
local function take_out(job, step, f, j)
  j = j or job_key(job)
  local pending, agent, chain = unpack(f or C('HMGET', j, 'pending:' .. step, 'agent', 'chain:' .. step))
  if not pending then return false end
  if chain then C('ZREM', K .. 'chained', job .. ':' .. step) end
  C('HDEL', j, 'pending:' .. step)
  local q, cls = string.match(pending, '^(%S+) (.*)$')
  local waiting, classes = K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent, K .. 'classes:' .. q
  if C('ZREM', waiting, job .. ':' .. step) == 0 then return false end
  if C('EXISTS', waiting) == 0 then C('ZREM', K .. 'ready:' .. q .. ':' .. cls, agent) end
  if C('HINCRBY', classes, cls, -1) <= 0 then C('HDEL', classes, cls) end
  return true
end
