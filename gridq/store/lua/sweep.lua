-- Find what nobody else looks at; run twice a second by every router, each item atomic, so it needs no lock.
-- ARGV  most items of each sort, most answers
-- gives {grace, died, seats gone, due, expired, rung, voided, {job whose answer is to be written …}, {of each lost lease: lease,
--       worker, path, job's name, what came of it …, those lost with a worker that left or started anew too}, {of each stage whose quarantine was over: job, job's name, path …},
--       1 where of some sort more is due than was looked at, else 0, {of each entry that could not be dealt with: set, entry, fault …}}
-- TTL   swept lives as long as a job may, ledger until nobody has swept for GRIDQ_LEDGER_DAYS
local other = other_schema(C('GET', K .. 'schema'))
if other then return other end
local most = tonumber(ARGV[1])

-- Keep only those excluded seats of a stage for which `keep` holds; true where that let one in.
local function readmit(job, step, keep)
  local j = jobkey(job)
  local x, kept, all = C('HGET', j, 'excluded:' .. step), {}, 0
  for s in string.gmatch(x or '', '[^,]+') do
    all = all + 1
    if keep(s) then kept[#kept + 1] = s end
  end
  if #kept == all then return false end
  if kept[1] then C('HSET', j, 'excluded:' .. step, table.concat(kept, ',')) else C('HDEL', j, 'excluded:' .. step) end
  if unpend(job, step) then push(job, step) end
  return true
end

local function unfit(job, step, seat)  -- it could never run it: no time lets it in
  return has(C('HGET', jobkey(job), 'unfit:' .. step) or '', seat)
end

local function backing_off(job, step, seat)
  return C('ZSCORE', K .. 'delays', 'backoff:' .. job .. ':' .. step .. ':' .. seat) ~= false
end

-- Where every seat that could take the stages of a class is excluded, they would wait for nobody: those seats are let in
-- again, but for the ones that back off. A seat that has no budget for the class could not take them.
local function void(q, cls, look)
  local cost, x = string.match(cls, '^[^/]*/([^|]*)|(.*)$')
  local able = {}
  for _, s in ipairs(C('SMEMBERS', K .. 'serving:' .. q)) do
    local f = C('HMGET', K .. 'seat:' .. s, 'own', 'grid', 'shared_budgets')
    if not lacking(bound_by(s, f[1], f[2], f[3]), q, tonumber(cost)) then able[#able + 1] = s end
  end
  local function covers(list)
    for _, s in ipairs(able) do if not has(list, s) then return false end end
    return #able > 0
  end
  if x ~= '*' and not covers(x) then return 0, 0 end
  local seen, voided = 0, 0
  for _, agent in ipairs(C('ZRANGE', K .. 'ready:' .. q .. ':' .. cls, 0, look - 1)) do
    for _, m in ipairs(C('ZRANGE', K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent, 0, look - seen - 1)) do
      local job, step = string.match(m, '^([^:]+):(.+)$')
      seen = seen + 1
      if covers(C('HGET', jobkey(job), 'excluded:' .. step) or '')
        and readmit(job, step, function(s) return unfit(job, step, s) or backing_off(job, step, s) end) then voided = voided + 1 end
    end
    if seen >= look then break end
  end
  return seen, voided
end

-- Stages whose job's keys expired unseen: of one agent in one class, another each time, as many as come first.
local function clear(q, classes)
  local cls = classes[NOW % #classes + 1]
  local rdy = K .. 'ready:' .. q .. ':' .. cls
  local from = NOW % math.max(C('ZCARD', rdy), 1)
  local agent = C('ZRANGE', rdy, from, from)[1]
  for _ = 1, agent and most or 0 do
    local first = C('ZRANGE', K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent, 0, 0)[1]
    if first and C('EXISTS', jobkey(string.match(first, '^[^:]+'))) == 1 then break end
    forget({q = q, cls = cls, agent = agent, step = first})
    if not first then break end
  end
end

local r, more = {0, 0, 0, 0, 0, 0, 0}, 0

-- What is due in a sorted set of times, up to so many.
local function due(set, limit, by)
  if limit < 1 then return {} end
  local found = C('ZRANGE', K .. set, '-inf', by or NOW, 'BYSCORE', 'LIMIT', 0, limit)
  if #found >= limit then more = 1 end
  return found
end

-- Whether this call has done its part: long jobs are walked through one at a time.
local function enough()
  if walked > 5000 then more = 1 end
  return walked > 5000
end

-- Deal with one entry of a set, so that it keeps nobody from the others where it cannot be: a hand or a lost write has left
-- something that no script makes. Such an entry is told of. Gives what `act` does.
local broken = {}
local function attempt(set, entry, act)
  local done, told = pcall(act, entry)
  if done then return told end
  for _, word in ipairs({set, entry, type(told) == 'table' and told.err or told}) do broken[#broken + 1] = word end
end

-- The same with what is due in a sorted set of times, until `act` says that this is enough. What cannot be dealt with leaves it.
local function each(set, limit, act)
  for _, entry in ipairs(due(set, limit)) do
    local faults = #broken
    local stop = attempt(set, entry, act)
    if #broken > faults then C('ZREM', K .. set, entry) end
    if stop or enough() then break end
  end
end

local last = tonumber(C('GET', K .. 'last_sweep') or NOW)
C('SET', K .. 'last_sweep', NOW, 'PX', KEEP)
C('XTRIM', K .. 'ledger', 'MINID', '~', whole(NOW - LEDGER), 'LIMIT', 1000)  -- by whole blocks of a hundred entries or so
C('PEXPIRE', K .. 'ledger', LEDGER)
-- Of agents that have no limits of their own, of whom there may be any number, those who use nothing now.
for _, name in ipairs(C('HRANDFIELD', K .. 'meters', 8)) do
  if string.sub(name, 1, 2) == 'a:' then
    local used = 0
    for _, m in ipairs(sheet(C('HGET', K .. 'meters', name))) do used = used + m.used + m.held end
    if used == 0 and C('HEXISTS', K .. 'limits', 'm:' .. name) == 0 then C('HDEL', K .. 'meters', name) end
  end
end
local away = NOW - last
local jumped = away > GAP or away < -GAP
if away < -GAP then  -- the clock was set back: windows that would end too far ahead end as if they had begun now
  local function again(key, field, name, seat, text)
    local list = sheet(text)
    refilled(list, name, seat)
    C('HSET', key, field, sheet_text(list))
  end
  local shared = C('HGETALL', K .. 'meters')
  for i = 1, #shared, 2 do again(K .. 'meters', shared[i], shared[i], '', shared[i + 1]) end
  for _, s in ipairs(C('ZRANGE', K .. 'seats', 0, -1)) do
    local f = C('HMGET', K .. 'seat:' .. s, 'own', 'grid')
    for i, name in ipairs({'own', 'grid'}) do if f[i] then again(K .. 'seat:' .. s, name, name, s, f[i]) end end
  end
end
if jumped or away > GAP / 2 then
  -- Nobody could renew (the server was away) or the clock jumped: every holder gets one more period. Where it was away for less,
  -- as in a fail-over, the time until then does not count: who missed a renewal or two tries again within one more. A part counts
  -- all the same: where every sweep is late, leases lapse yet.
  for _, z in ipairs({K .. 'leases', K .. 'seats'}) do
    local all = C('ZRANGE', z, 0, -1, 'WITHSCORES')
    for i = 1, #all, 2 do
      local to = jumped and NOW + LEASE or math.min(math.floor(all[i + 1] + away - GAP / 4), NOW + LEASE)
      C('ZADD', z, to, all[i])
      r[1] = r[1] + 1
    end
  end
end
if not jumped then
  local closed = 0  -- as many as make up the bound with their leases: a machine room that goes dark is soon forgotten
  each('seats', most, function(s)
    closed = closed + 1 + C('HLEN', K .. 'slots:' .. s)
    gone(s, 'the worker is dead')
    r[3] = r[3] + 1
    if closed >= most then more = 1 end
    return closed >= most
  end)
  each('leases', most, function(l) r[2] = r[2] + lost(l, 'its lease lapsed') end)
end
each('delays', most, function(m)
  C('ZREM', K .. 'delays', m)
  r[4] = r[4] + 1
  local kind, job, n, what = string.match(m, '^([%a_]+):([^:]+):(%d+):(.+)$')
  local j = jobkey(job)
  if kind == 'retry' and C('HGET', j, 'scope_epoch:' .. n) == what then  -- a Retry's delay is over
    for s, count in string.gmatch(string.match(C('HGET', j, 'scope:' .. n), '^%S+ %S+ %S+ ([^;]*);'), '(%d+)=(%d+)') do
      if count == '0' then push(job, s); walked = walked + 1 end
    end
  elseif kind == 'backoff' or (kind == 'loss' and not backing_off(job, n, what)) then  -- the seat may try again
    readmit(job, n, function(s) return s ~= what end)
  elseif kind == 'queue_timeout' then  -- a stage stood ready for too long, where nobody has claimed it since
    local f = C('HMGET', j, 'header:' .. n, 'epoch:' .. n, 'attempts:' .. n, 'done:' .. n, 'excluded:' .. n, 'queue_timeout', 'agent', 'team', 'tokens:' .. n)
    if f[1] and not f[4] and what == (f[2] or '0') .. '.' .. (f[3] or '0') then
      local h = header(nil, nil, f[1])
      finish(job, 'expired', queue_timeout(h.path, h.q, f[6], unclaimed(h.q, f[5] or '', h.cost, f[7], f[8], f[9])))
      r[5] = r[5] + 1
    end
  elseif kind == 'inbox_timeout' and C('EXISTS', K .. 'submitted:' .. job) == 1 then  -- no router admitted it in time
    finish(job, 'expired', queue_timeout('', 'gridq:router', C('HGET', K .. 'submitted:' .. job, 'queue_timeout'), 'no router came to it',
      'start a router: celery -A gridq.app worker -Q gridq:router'))
    r[5] = r[5] + 1
  end
end)
local dropped = {}
each('quarantine', most, function(m)
  local job, step = string.match(m, '^([^:]+):(.+)$')
  local name, path = unpack(C('HMGET', jobkey(job), 'name', 'header:' .. step))
  path = path and header(job, step, path).path
  if drop(job, step, 'nobody: its time was over') then
    for _, word in ipairs({job, name or '', path}) do dropped[#dropped + 1] = word end
  else C('ZREM', K .. 'quarantine', m) end  -- its job's keys expired unseen
end)
each('deadlines', most, function(job)
  C('ZREM', K .. 'deadlines', job)
  unhold(job)  -- where its keys expired unseen, nobody else gives it back
  if C('EXISTS', jobkey(job), K .. 'submitted:' .. job) > 0 then
    finish(job, 'expired', past_deadline(job))
    r[5] = r[5] + 1
  else  -- its keys expired: no router looked for long
    C('ZREM', K .. 'inbox', job)
    if C('ZSCORE', K .. 'ended_jobs', job) == false then C('ZREM', K .. 'jobs', job) end
  end
end)
for _, job in ipairs(due('ended_jobs', 10 * most)) do  -- as fast as jobs can end
  C('ZREM', K .. 'ended_jobs', job)
  C('ZREM', K .. 'jobs', job)
end
if unpark_due() >= 200 then more = 1 end
-- A job waits until the routers' queue has room, so that whose message still stands in it gets no second one, and until the
-- server has memory for its plan.
local message = C('HGET', K .. 'wake_ups', 'router')
local room = message and C('EXISTS', K .. 'memory_full') == 0 and most - C('LLEN', P .. 'gridq:router') or 0
for _, job in ipairs(due('inbox', room)) do
  C('ZADD', K .. 'inbox', NOW + 2000, job)
  C('LPUSH', P .. 'gridq:router', (string.gsub(message, '@@(%u+)@@', {ID = job})))
  r[6] = r[6] + 1
end
-- A stage with a chain stands where somebody could take it, as long as anybody could: those first that were looked at longest ago.
members, whom, purses = {}, {}, {}  -- seats may have gone since, and money with them
local chained, moved, seen = C('ZRANGE', K .. 'chained', 0, 2 * most - 1), 0, {}
for _, entry in ipairs(chained) do
  local faults = #broken
  attempt('chained', entry, function(m)
    local job, step = string.match(m, '^([^:]+):(.+)$')
    local displaced = misplaced(job, step)
    if displaced == nil then C('ZREM', K .. 'chained', m)  -- its job's keys expired unseen
    elseif displaced and unpend(job, step) then
      push(job, step)
      moved = moved + 1
    else seen[#seen + 1], seen[#seen + 2] = NOW, m end
  end)
  if #broken > faults then C('ZREM', K .. 'chained', entry) end
  if moved >= most then more = 1; break end
end
if #chained >= 2 * most then
  for i = 1, #seen, 1000 do C('ZADD', K .. 'chained', unpack(seen, i, math.min(i + 999, #seen))) end
end
for _, queue in ipairs(C('SMEMBERS', K .. 'queues')) do
  attempt('queues', queue, function(q)
    local classes, look = C('HKEYS', K .. 'classes:' .. q), most
    for _, cls in ipairs(classes) do
      if look > 0 and string.sub(cls, -1) ~= '|' then
        local seen, voided = void(q, cls, look)
        look, r[7] = look - seen, r[7] + voided
      end
    end
    if #classes > 0 then clear(q, classes); ring(q) elseif C('LLEN', P .. q) == 0 then C('SREM', K .. 'queues', q) end
  end)
end
if r[7] >= most then more = 1 end
local answers = due('answers', tonumber(ARGV[2]), NOW - 300)
for _, job in ipairs(answers) do C('ZADD', K .. 'answers', NOW, job) end
for _, word in ipairs(C('LPOP', K .. 'unreported_losses', 5000) or {}) do losses[#losses + 1] = word end
r[8], r[9], r[10], r[11], r[12] = answers, losses, dropped, more, broken
return r
