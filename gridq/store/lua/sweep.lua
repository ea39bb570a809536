-- Find everything that nobody else looks at. Every router runs this twice a second; each item is processed atomically, so it needs no
-- lock.
--
-- ARGS
--   limit    at most so many items of each sort
--   answers  at most so many answers
-- RETURNS  {grace, died, seats, due, expired, woken, readmitted (gridq/store/replies.py), {job whose answer must be written …},
--           {of each lost lease: lease, worker, path, the job's name, what came of it …, with those that leave.lua kept},
--           {of each stage whose quarantine is over: job, the job's name, path …},
--           1 if more of some sort is due than was processed, 2 if advance.lua should go on with a change of limits, else 0,
--           {of each entry that could not be processed: set, entry, fault …}}
-- TTL      last_sweep lives as long as a job may, ledger until nobody has swept for GRIDQ_LEDGER_DAYS
local schema_error = check_schema(C('GET', K .. 'schema'))
if schema_error then return schema_error end
limit = tonumber(limit)
local found = {grace = 0, died = 0, seats = 0, due = 0, expired = 0, woken = 0, readmitted = 0}
local more = 0

-- Keep only those excluded seats of a stage for which `stays` holds; true if that let one in.
local function readmit(job, step, stays)
  local j = job_key(job)
  local excluded, kept, all = C('HGET', j, 'excluded:' .. step), {}, 0
  for seat in string.gmatch(excluded or '', '[^,]+') do
    all = all + 1
    if stays(seat) then kept[#kept + 1] = seat end
  end
  if #kept == all then return false end
  if kept[1] then C('HSET', j, 'excluded:' .. step, table.concat(kept, ',')) else C('HDEL', j, 'excluded:' .. step) end
  if take_out(job, step) then make_ready(job, step) end
  return true
end

local function is_unfit(job, step, seat)  -- the seat could never run the stage: no time lets it in
  return is_excluded(C('HGET', job_key(job), 'unfit:' .. step) or '', seat)
end

local function is_backing_off(job, step, seat)
  return C('ZSCORE', K .. 'delays', 'backoff:' .. job .. ':' .. step .. ':' .. seat) ~= false
end

-- Return whether a live seat that a stage does not exclude could take it if it were not busy.
local function has_other_seat(job, step)
  local header, excluded, agent, team, tokens = unpack(C('HMGET', job_key(job), 'header:' .. step, 'excluded:' .. step, 'agent', 'team',
    'tokens:' .. step))
  if not header then return false end
  local q, cost = string.match(header, '^(%S+) (%S+)')
  return has_taker(q, cost, excluded or '', agent, team, tokens)
end

-- Return up to `most` members of a sorted set that follow each other, others each time if there are more.
local function some_of(key, most)
  local n = C('ZCARD', key)
  local from = n > most and NOW % (n - most + 1) or 0
  return C('ZRANGE', key, from, from + most - 1)
end

-- Return a list, or of very many up to `most` that follow each other, others each time.
local function some_in_turn(list, most)
  if #list <= most then return list end
  local some = {}
  for i = 1, most do some[i] = list[(NOW + i) % #list + 1] end
  return some
end

-- A seat that failed a stage is not given it again while another could take it. If none could, the stage would wait for nobody: then the
-- seats that it excludes are let in again, except those that back off. At most `most` stages of a class are looked at. Returns how many let
-- a seat in.
local function readmit_class(q, cls, most)
  local seen, readmitted = 0, 0
  for _, agent in ipairs(some_of(K .. 'ready:' .. q .. ':' .. cls, most)) do
    if seen >= most or afford_count > 4 * MAX_AFFORD then break end
    for _, member in ipairs(some_of(K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent, most - seen)) do
      local job, step = string.match(member, '^([^:]+):(.+)$')
      seen = seen + 1
      local is_in = attempt('stages', member, function()
        return not has_other_seat(job, step)
          and readmit(job, step, function(seat) return is_unfit(job, step, seat) or is_backing_off(job, step, seat) end)
      end)
      if is_in then readmitted = readmitted + 1 end
    end
  end
  return readmitted
end

-- The same for all classes of a queue in which stages exclude seats.
local function readmit_queue(q, classes)
  local excluding, readmitted = {}, 0
  for _, cls in ipairs(classes) do if string.sub(cls, -1) ~= '|' then excluding[#excluding + 1] = cls end end
  if not excluding[1] or C('SCARD', K .. 'serving:' .. q) == 0 then return 0 end
  excluding = some_in_turn(excluding, limit)
  for _, cls in ipairs(excluding) do readmitted = readmitted + readmit_class(q, cls, math.ceil(limit / #excluding)) end
  return readmitted
end

-- Drop stages whose job's keys expired unseen: those of one agent in one class, another each time, as many as come first.
local function drop_expired(q, classes)
  local cls = classes[NOW % #classes + 1]
  local ready = K .. 'ready:' .. q .. ':' .. cls
  local from = NOW % math.max(C('ZCARD', ready), 1)
  local agent = C('ZRANGE', ready, from, from)[1]
  for _ = 1, agent and limit or 0 do
    local first = C('ZRANGE', K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent, 0, 0)[1]
    if first and C('EXISTS', job_key(string.match(first, '^[^:]+'))) == 1 then break end
    drop_entry({q = q, cls = cls, agent = agent, step = first})
    if not first then break end
  end
end

-- What is due in a sorted set of times, at most `most` of it.
local function find_due(set, most, by)
  if most < 1 then return {} end
  local entries = C('ZRANGE', K .. set, '-inf', by or NOW, 'BYSCORE', 'LIMIT', 0, most)
  if #entries >= most then more = 1 end
  return entries
end

-- Whether this call has done its part of what may be long.
local function has_walked_enough()
  if walked >= MAX_WALK then more = 1 end
  return walked >= MAX_WALK
end

-- End the jobs whose stage waits in this queue while all seats that could run it are unavailable. Returns how many ended.
local function end_stranded(q, classes, unavailable)
  local ended = 0
  classes = some_in_turn(classes, limit)
  for _, cls in ipairs(classes) do
    local cost = string.match(cls, '/([^|]*)|$')
    if not (cost and has_taker(q, cost, '')) then
      local left = math.ceil(limit / #classes)
      for _, agent in ipairs(some_of(K .. 'ready:' .. q .. ':' .. cls, left)) do
        for _, member in ipairs(left > 0 and some_of(K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent, left) or {}) do
          if has_walked_enough() then return ended end
          local job, step = string.match(member, '^([^:]+):(.+)$')
          left = left - 1
          attempt('stages', member, function()
            local err = find_unavailable_error(job, step, unavailable)
            if err and fail_step(job, step, err) ~= 'again' then ended = ended + 1 end
          end)
        end
      end
    end
  end
  if ended >= limit then more = 1 end
  return ended
end

-- Process what is due in a sorted set of times, until `act` returns true. An entry that fails is removed, after a call of `drop`.
local function each_due(set, act, drop)
  local due = attempt(set, '', function() return find_due(set, limit) end)
  for _, entry in ipairs(due or {}) do
    local stop, failed = attempt(set, entry, act)
    if failed then
      if drop then attempt(set, entry, drop) end
      C('ZREM', K .. set, entry)
    end
    if stop or has_walked_enough() then break end
  end
end

local last = tonumber(C('GET', K .. 'last_sweep') or NOW)
C('SET', K .. 'last_sweep', NOW, 'PX', KEEP)
attempt('ledger', '', function()
  C('XTRIM', K .. 'ledger', 'MINID', '~', int_text(NOW - LEDGER), 'LIMIT', 1000)  -- by whole blocks of about a hundred entries
  C('PEXPIRE', K .. 'ledger', LEDGER)
end)
-- There may be any number of agents without limits of their own: forget the budgets of those that use nothing now.
for _, account in ipairs(attempt('meters', '', function() return C('HRANDFIELD', K .. 'meters', 8) end) or {}) do
  attempt('meters', account, function(name)
    if string.sub(name, 1, 2) ~= 'a:' then return end
    local used = 0
    for _, m in ipairs(parse_budget(C('HGET', K .. 'meters', name))) do used = used + m.used + m.reserved end
    if used == 0 and C('HEXISTS', K .. 'limits', 'm:' .. name) == 0 then C('HDEL', K .. 'meters', name) end
  end)
end
local away = NOW - last
local jumped = away > GAP or away < -GAP
if away < -GAP then  -- the clock was set back: windows that would end too far ahead end as if they had begun now
  local function refresh(key, field, name, seat, text)
    attempt(string.sub(key, #K + 1), field, function()
      local budget = parse_budget(text)
      record_resets(budget, name, seat)
      C('HSET', key, field, format_budget(budget))
    end)
  end
  local shared = C('HGETALL', K .. 'meters')
  for i = 1, #shared, 2 do refresh(K .. 'meters', shared[i], shared[i], '', shared[i + 1]) end
  for _, each in ipairs(C('ZRANGE', K .. 'seats', 0, -1)) do
    attempt('seats', each, function(seat)
      local budgets = C('HMGET', K .. 'seat:' .. seat, 'own', 'grid')
      for i, name in ipairs({'own', 'grid'}) do
        if budgets[i] then refresh(K .. 'seat:' .. seat, name, name, seat, budgets[i]) end
      end
    end)
  end
end
if jumped or away > GAP / 2 then
  -- Nobody could renew (the server was away) or the clock jumped: every holder gets one more lease. If the server was away for less, as
  -- in a fail-over, that time does not count: who missed a renewal or two tries again within one more. A part of it counts all the
  -- same: if every sweep is late, leases still lapse.
  -- Nor could a worker that had ended start again.
  for set, latest in pairs({leases = NOW + LEASE, seats = NOW + LEASE, gone_seats = NOW}) do
    attempt(set, '', function()
      local all = C('ZRANGE', K .. set, 0, -1, 'WITHSCORES')
      for i = 1, #all, 2 do  -- in place: a score stands before its member in ZADD
        local to = jumped and latest or math.min(math.floor(all[i + 1] + away - GAP / 4), latest)
        all[i], all[i + 1] = int_text(to), all[i]
      end
      for i = 1, #all, 2000 do C('ZADD', K .. set, unpack(all, i, math.min(i + 1999, #all))) end
      if set ~= 'gone_seats' then found.grace = found.grace + #all / 2 end
    end)
  end
end
if not jumped then
  local closed = 0  -- seats and their leases together make up the limit, so that a whole site that goes dark is soon processed
  each_due('seats', function(seat)
    closed = closed + 1 + C('HLEN', K .. 'slots:' .. seat)
    remove_seat(seat, 'the worker is dead')
    found.seats = found.seats + 1
    if closed >= limit then more = 1 end
    return closed >= limit
  end)
  each_due('leases', function(lease) found.died = found.died + lose_lease(lease, 'its lease lapsed') end)
end
each_due('delays', function(entry)
  C('ZREM', K .. 'delays', entry)
  found.due = found.due + 1
  local kind, job, n, rest = string.match(entry, '^([%a_]+):([^:]+):(%d+):(.+)$')
  local j = job_key(job)
  if kind == 'retry' and C('HGET', j, 'scope_epoch:' .. n) == rest then  -- a Retry's delay is over
    do_work(job, C('HGET', j, 'working'), {{'enter', n, rest, 1}})
  elseif kind == 'backoff' then  -- the seat may try again if no other can; else it may once none can (readmit_class)
    if not has_other_seat(job, n) then readmit(job, n, function(seat) return seat ~= rest end) end
  elseif kind == 'loss' and not is_backing_off(job, n, rest) then readmit(job, n, function(seat) return seat ~= rest end)
  elseif kind == 'queue_timeout' then  -- a stage waited for too long, unless somebody has claimed it since
    local header, epoch, attempts, done, excluded, timeout, agent, team, tokens = unpack(C('HMGET', j, 'header:' .. n, 'epoch:' .. n,
      'attempts:' .. n, 'done:' .. n, 'excluded:' .. n, 'queue_timeout', 'agent', 'team', 'tokens:' .. n))
    if header and not done and rest == (epoch or '0') .. '.' .. (attempts or '0') then
      local h = read_header(nil, nil, header)
      end_job(job, 'expired', build_queue_timeout(h.path, h.q, timeout, explain_wait(h.q, excluded or '', h.cost, agent, team, tokens)))
      found.expired = found.expired + 1
    end
  elseif kind == 'inbox_timeout' and C('EXISTS', K .. 'submitted:' .. job) == 1 then  -- no router admitted it in time
    end_job(job, 'expired', build_queue_timeout('', 'gridq:router', C('HGET', K .. 'submitted:' .. job, 'queue_timeout'),
      'no router admitted it', 'start a router: celery -A gridq.app worker -Q gridq:router'))
    found.expired = found.expired + 1
  end
end)
local dropped = {}
each_due('quarantine', function(member)
  local job, step = string.match(member, '^([^:]+):(.+)$')
  local name, path = unpack(C('HMGET', job_key(job), 'name', 'header:' .. step))
  path = path and read_header(job, step, path).path
  if drop_step(job, step, 'nobody: its time was over') then
    for _, word in ipairs({job, name or '', path}) do dropped[#dropped + 1] = word end
  else C('ZREM', K .. 'quarantine', member) end  -- its job's keys expired unseen
end)
each_due('deadlines', function(job)
  C('ZREM', K .. 'deadlines', job)
  release_reservation(job)  -- if its keys expired unseen, nobody else does
  if C('EXISTS', job_key(job), K .. 'submitted:' .. job) > 0 then
    end_job(job, 'expired', build_deadline_error(job))
    found.expired = found.expired + 1
  else  -- its keys expired: no router swept for long
    C('ZREM', K .. 'inbox', job)
    if C('ZSCORE', K .. 'ended_jobs', job) == false then C('ZREM', K .. 'jobs', job) end
  end
end, function(job)
  C('ZREM', K .. 'inbox', job)
  C('ZREM', K .. 'jobs', job)
end)
attempt('ended_jobs', '', function()
  for _, job in ipairs(find_due('ended_jobs', 10 * limit)) do  -- as fast as jobs can end
    C('ZREM', K .. 'ended_jobs', job)
    C('ZREM', K .. 'jobs', job)
  end
end)
attempt('parked_agents', '', function() unpark_due() end)
-- A job waits until the routers' queue has room, so that a job whose message is still in it gets no second one, and until the server
-- has memory for its plan.
attempt('inbox', '', function()
  local message = C('HGET', K .. 'wake_ups', 'router')
  local room = message and C('EXISTS', K .. 'memory_full') == 0 and limit - C('LLEN', P .. 'gridq:router') or 0
  for _, job in ipairs(find_due('inbox', room)) do
    C('ZADD', K .. 'inbox', NOW + 2000, job)
    C('LPUSH', P .. 'gridq:router', (string.gsub(message, '@@(%u+)@@', {ID = job})))
    found.woken = found.woken + 1
  end
end)
-- Move each stage with fall-backs to the queue where somebody could take it. Those that were checked longest ago come first.
seats_cache, lent_cache, afford_cache, taker_cache = {}, {}, {}, {}  -- seats may have gone since, and money with them
local chained = attempt('chained', '', function() return C('ZRANGE', K .. 'chained', 0, 2 * limit - 1) end) or {}
local moved, checked, cut = 0, {}, false
for _, member in ipairs(chained) do
  local _, failed = attempt('chained', member, function(entry)
    local job, step = string.match(entry, '^([^:]+):(.+)$')
    local misplaced = is_misplaced(job, step)
    if misplaced == nil then C('ZREM', K .. 'chained', entry)  -- its job's keys expired unseen
    elseif misplaced and take_out(job, step) then
      make_ready(job, step)
      moved = moved + 1
    else checked[#checked + 1], checked[#checked + 2] = NOW, entry end
  end)
  if failed then C('ZREM', K .. 'chained', member) end
  cut = moved >= limit or afford_count > 2 * MAX_AFFORD  -- reading budgets takes long
  if cut then more = 1; break end
end
if cut or #chained >= 2 * limit then
  for i = 1, #checked, 1000 do C('ZADD', K .. 'chained', unpack(checked, i, math.min(i + 999, #checked))) end
end
local unavailable = attempt('unavailable_seats', '', function() return read_unavailable() end)
for _, queue in ipairs(attempt('queues', '', function() return some_in_turn(C('SMEMBERS', K .. 'queues'), 5 * limit) end) or {}) do
  attempt('queues', queue, function(q)
    local classes = C('HKEYS', K .. 'classes:' .. q)
    found.readmitted = found.readmitted + readmit_queue(q, classes)
    if unavailable or C('SCARD', K .. 'serving:' .. q) == 0 then
      found.expired = found.expired + end_stranded(q, classes, unavailable or {})
    end
    if #classes > 0 then drop_expired(q, classes); wake_seat(q)
    elseif C('LLEN', P .. q) == 0 then C('SREM', K .. 'queues', q) end
  end)
end
if found.readmitted >= limit then more = 1 end
local limits_left = false
for _, entry in ipairs(attempt('long_work', '', function() return C('ZRANGE', K .. 'long_work', 0, limit - 1) end) or {}) do
  local _, failed = attempt('long_work', entry, function(one)
    if one == LIMITS_WORK then limits_left = true else advance(one) end
  end)
  if failed then C('ZREM', K .. 'long_work', entry) end
  if has_walked_enough() then break end
end
if work_left then more = 1 end
if limits_left then more = 2 end
local due_answers = attempt('answers', '', function()
  local due = find_due('answers', tonumber(answers), NOW - 300)
  for _, job in ipairs(due) do C('ZADD', K .. 'answers', NOW, job) end
  return due
end) or {}
attempt('unreported_losses', '', function()
  for _, word in ipairs(C('LPOP', K .. 'unreported_losses', 5000) or {}) do losses[#losses + 1] = word end
end)
-- End the jobs of which a claim could not read a stage, or further calls do what was left.
local damage = take_damage()
for i = 1, #damage, 3 do
  local set, entry = damage[i], damage[i + 1]
  local job = string.find(set, '^waiting:') and string.match(entry, '^([^:]+):%d+$')
    or set == 'long_work' and string.match(entry, '^[^:]+$')
  if job and C('EXISTS', job_key(job)) == 1 then
    attempt('jobs', job, function()
      if C('TYPE', job_key(job)).ok ~= 'hash' then C('UNLINK', job_key(job)) end
      end_job(job, 'failed', cjson.encode({error = 'JobDamaged', code = 'job.damaged', message = 'A record of the job cannot be read',
        details = {job = job, reason = 'something other than gridq has changed it'}}))
    end)
  end
end
return {found.grace, found.died, found.seats, found.due, found.expired, found.woken, found.readmitted, due_answers, losses, dropped, more,
  damage}
