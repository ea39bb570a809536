-- Where ready stages stand, and the wake-ups that wake slots.

-- What a claim of this cost moves its agent's virtual time by: one stage, plus one for each cent.
local function weight(cost) return 1 + tonumber(cost) / 10000 end

local function send_wake_up(key, queue, template)
  local id = 'wake_up-' .. C('INCR', K .. 'wake_up_number')
  local message = string.gsub(C('HGET', K .. 'wake_ups', template) or '', '@@(%u+)@@', {ID = id, QUEUE = queue})
  if message == '' then return 0 end
  if C('LPUSH', key, message) == 1 then C('PEXPIRE', key, 3600000) end
  return 1
end

-- Put a seat back among those that may be rung, at each queue it serves: best rank first, least recently used on ties. One that has
-- gone live since the queue was ranked is no better than the last of those that were ('*'); where none was, all are alike.
local function mark_idle(seat, queues)
  for q in words(queues) do
    local rank = C('ZMSCORE', K .. 'rank:' .. q, seat, '*')
    C('ZADD', K .. 'idle:' .. q, (tonumber(rank[1] or rank[2]) or 0) * 1e13 + NOW, seat)
  end
end

-- Seats where a stage of this queue would find its model loaded, and first the one that its submitter prefers or that knows its
-- session.
local function preferred_seats(q, session)
  local seats = C('ZRANGE', K .. 'warm:' .. q, 0, 3)
  if session then table.insert(seats, 1, session) end
  return seats
end

-- Ring for one stage: a preferred seat that is idle, else the best-ranked idle seat's own queue, else the capability's
-- queue, where never more wake-ups stand than slots listen. A wake-up is a hint: a seat found busy leaves the idle set and comes
-- back with its next free slot. Where it is known who is excluded, what the stage costs and will use (`told`) and whose it is, a
-- seat that could not take it is passed over.
local function wake_seat(q, excluded, cost, session, agent, team, told)
  local set = K .. 'idle:' .. q
  local seats = {}
  for _, seat in ipairs(preferred_seats(q, session)) do if C('ZSCORE', set, seat) then seats[#seats + 1] = seat end end
  for _, seat in ipairs(C('ZRANGE', set, 0, 15)) do seats[#seats + 1] = seat end
  local spare
  for _, seat in ipairs(seats) do
    local f = C('HMGET', K .. 'seat:' .. seat, 'concurrency', 'own', 'grid', 'lent_to', 'shared_budgets', 'prices', 'hourly_price', 'stage_ms')
    local bill = cost and budgets_of_seat(seat, f[2], f[3], f[5])
    local poor = bill and find_shortage(bill, q, tonumber(cost), estimate_use(told, q, f[6], f[7], f[8]))
    if not poor and not (excluded and is_excluded(excluded, seat)) and (not agent or is_lent_to(f[4], agent, team)) then
      local own = P .. 'seat:' .. seat
      local concurrency = tonumber(f[1] or 0)
      local taken = C('LLEN', own) + C('HLEN', K .. 'slots:' .. seat)
      if f[4] and not agent and taken < concurrency then  -- whose stage it is nobody knows: one that is lent to some alone comes last
        spare = spare or {seat, own, taken + 1 >= concurrency}
      else
        if taken + 1 >= concurrency then C('ZREM', set, seat) end
        if taken < concurrency then return send_wake_up(own, 'seat:' .. seat, 'stage') end
      end
    end
  end
  if spare then
    if spare[3] then C('ZREM', set, spare[1]) end
    return send_wake_up(spare[2], 'seat:' .. spare[1], 'stage')
  end
  local concurrency = tonumber(C('HGET', K .. 'concurrency', q) or 0)
  if concurrency < 1 then concurrency = 1 end
  if C('LLEN', P .. q) < concurrency then return send_wake_up(P .. q, q, 'stage') end
  return 0
end

-- What ends a job whose stage stands ready for longer than its queue timeout: an entry of `delays`, of this epoch and this many
-- claims, so a stage that is ready again counts anew, and one that only changes its class does not.
local function timeout_entry(job, step, epoch, claims) return 'queue_timeout:' .. job .. ':' .. step .. ':' .. (epoch or '0') .. '.' .. (claims or '0') end

-- Make a stage ready. It keeps its first ready time, so one that comes back is not put behind the backlog. Rings for it, or
-- where `later` is given notes in it what is to be rung for.
local function make_ready(job, step, later)
  local j = job_key(job)
  local f = C('HMGET', j, 'agent', 'priority', 'excluded:' .. step, 'ready_at:' .. step, 'pending:' .. step, 'session', 'charged_team', 'header:' .. step, 'queue_timeout',
    'epoch:' .. step, 'attempts:' .. step, 'preferred_seat', 'team', 'chain:' .. step, 'tokens:' .. step)
  if f[5] then return end
  if f[14] then f[8], f[3] = place_step(job, step, f[14], f[8], f[3], f[1], f[7] or f[13]) end
  if f[9] then C('ZADD', K .. 'delays', 'NX', NOW + f[9], timeout_entry(job, step, f[10], f[11])) end
  local h = read_header(nil, nil, f[8])
  local agent, q = f[1], h.q
  -- A class holds what the same seats may take, so that a seat passes over it whole: priority / cost step | excluded seats.
  -- In a queue of too many classes the exclusions of the rest are looked at stage by stage.
  local cls = f[2] .. '/' .. h.cost .. '|' .. (f[3] or '')
  if f[3] and C('HEXISTS', K .. 'classes:' .. q, cls) == 0 and C('HLEN', K .. 'classes:' .. q) > 64 then cls = f[2] .. '/' .. h.cost .. '|*' end
  local w = K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent
  f[4] = f[4] or NOW
  local waited = C('EXISTS', K .. 'classes:' .. q) == 1
  C('ZADD', w, f[4], job .. ':' .. step)
  if C('HINCRBY', K .. 'classes:' .. q, cls, 1) == 1 then C('SADD', K .. 'queues', q) end
  local kind = string.match(q, '^[^:]+')
  local vt = K .. 'virtual_time:' .. kind
  -- An agent that comes late or comes back starts level with those served now, so it is neither favoured for its absence
  -- nor put behind them; in a queue that others wait in, level with whom that queue serves, which may be slower than others.
  local times = C('HMGET', vt, agent, '*', '*' .. q)
  local v, level = tonumber(times[1] or 0), tonumber(times[2] or 0)
  if waited and times[3] then level = math.min(level, tonumber(times[3])) end
  if v < level or not times[1] then v = math.max(v, level); C('HSET', vt, agent, v) end
  local rdy = K .. 'ready:' .. q .. ':' .. cls
  local apart = f[7] and not is_free(q) and is_over_limit(agent, f[7])  -- its agent has used more than it may
  if apart then park_class(q, cls, agent, f[7]) else C('ZADD', rdy, v, agent) end
  C('HSET', j, 'pending:' .. step, q .. ' ' .. cls, 'ready_at:' .. step, f[4])
  for _, key in ipairs({w, rdy, K .. 'classes:' .. q, vt}) do C('PEXPIRE', key, KEEP) end
  if apart then return end
  local session = f[12] or f[6] and C('HGET', K .. 'sessions:' .. agent, f[6]) or nil
  local team = f[7] or f[13]
  if later then later[#later + 1] = {q, f[3], h.cost, session, agent, team, f[15]}
  else wake_seat(q, f[3], h.cost, session, agent, team, f[15]) end
end

-- Take a stage out of its pending set; true where it stood there. `f`: its job's fields at:<step>, agent and fb:<step>, where the
-- caller has read them.
local function take_out(job, step, f)
  local j = job_key(job)
  f = f or C('HMGET', j, 'pending:' .. step, 'agent', 'chain:' .. step)
  if not f[1] then return false end
  if f[3] then C('ZREM', K .. 'chained', job .. ':' .. step) end
  C('HDEL', j, 'pending:' .. step)
  local q, cls = string.match(f[1], '^(%S+) (.*)$')
  local w = K .. 'waiting:' .. q .. ':' .. cls .. ':' .. f[2]
  if C('ZREM', w, job .. ':' .. step) == 0 then return false end
  if C('EXISTS', w) == 0 then C('ZREM', K .. 'ready:' .. q .. ':' .. cls, f[2]) end
  if C('HINCRBY', K .. 'classes:' .. q, cls, -1) <= 0 then C('HDEL', K .. 'classes:' .. q, cls) end
  return true
end
