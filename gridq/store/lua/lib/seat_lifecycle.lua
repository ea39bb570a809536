-- Seats that come and go.

-- Of each lease that was lost in this call: lease, worker, path, the job's name, what came of it (again | quarantined | plain | celery).
local losses = {}

-- End a lost lease; returns 1 if its stage goes on or its job ended with it. `kind`: lost, or died if the stage counts as what killed its
-- worker.
local function lose_lease(lease, why, kind)
  local job, step = parse_lease(lease)
  if stop_remaining(job, step) then return 0 end  -- its job has ended
  local seat, names = close_lease(lease)
  if not seat then return 0 end
  local name, agent, header, started_at, pieces = unpack(C('HMGET', job_key(job), 'name', 'agent', 'header:' .. step,
    'started_at:' .. step, 'pieces:' .. step))
  local attempt = describe_attempt(agent, header, started_at)
  remember_closed(lease, seat, '-', attempt, names)
  record_attempt('lost', lease, seat, attempt, parse_usage('-'), names)
  count_outcomes(seat, 0, 1)
  if not header then return 0 end
  C('HINCRBY', K .. 'attempts_lost', 'count', 1)
  C('PEXPIRE', K .. 'attempts_lost', KEEP)
  -- The error of the job if this was the stage's last chance; after its first token it is.
  local record = pieces and '{"error":"StreamCut","code":"stage.stream_cut","message":"The answer broke off after it had begun"'
    or kind == 'died' and '{"error":"StageQuarantined","code":"stage.quarantined","message":"The stage killed the process that ran it, twice"'
    or '{"error":"AttemptsExhausted","code":"stage.attempts_exhausted","message":"The stage lost every seat that ran it"'
  if kind == 'died' then C('HDEL', job_key(job), 'lease:' .. step) end  -- the attempt cannot report any more
  local worker = C('HGET', K .. 'seat:' .. seat, 'worker') or seat
  local details = {reason = why, worker = worker, path = read_header(job, step, header).path}
  local after = end_attempt(job, step, seat, kind or 'lost', 0, record .. ',"details":' .. cjson.encode(details) .. '}')
  local stays = after == 'again' or after == 'quarantined'
  publish_stop(stays and 'retried' or 'failed', job .. '.' .. step, seat, 'lost: ' .. why)
  for _, word in ipairs({lease, worker, details.path, name or '', after}) do
    losses[#losses + 1] = word
  end
  return 1
end

-- A sweep reports lost leases to its caller; those lost in another call are kept for the next sweep.
local function keep_losses()
  if not losses[1] then return end
  for i = 1, #losses, 1000 do C('RPUSH', K .. 'unreported_losses', unpack(losses, i, math.min(i + 999, #losses))) end
  C('LTRIM', K .. 'unreported_losses', -5000, -1)
  C('PEXPIRE', K .. 'unreported_losses', 60000)
end

-- Set the queues whose model the seat has loaded.
local function set_warm(seat, before, now)
  for q in words(before) do C('ZREM', K .. 'warm:' .. q, seat) end
  for q in words(now) do C('ZADD', K .. 'warm:' .. q, NOW, seat) end
  C('HSET', K .. 'seat:' .. seat, 'warm', now, 'warm_since', NOW)
end

-- Merge how long stages take on a seat ('queue=ms …'): what `news` does not name stays as it was `before`, for the queues that it serves.
local function merge_times(before, news, queues)
  local known, list = {}, {}
  for _, text in ipairs({before or '', news}) do
    for q, ms in string.gmatch(text, '(%S+)=(%d+)') do known[q] = ms end
  end
  for q in words(queues) do if known[q] then list[#list + 1] = q .. '=' .. known[q] end end
  return table.concat(list, ' ')
end

-- List a seat at its queues. It is listed as long as it is live and takes work.
local function list_seat(seat, concurrency, queues)
  for q in words(queues) do
    C('HINCRBY', K .. 'concurrency', q, concurrency)
    C('SADD', K .. 'serving:' .. q, seat)
  end
end

-- Remember that queues were served until now: jobs wait a while for them (gridq/seats/served_queues.py). Of very many those that were
-- served last stay.
local function remember_served(queues)
  local key, second, days = K .. 'served_queues', math.floor(NOW / 1000), 30 * 86400
  for _, q in ipairs(queues) do C('ZADD', key, second, q) end
  C('ZREMRANGEBYSCORE', key, '-inf', second - days)
  C('ZREMRANGEBYRANK', key, 0, -10001)
  C('EXPIRE', key, days)
end

local function unlist_seat(seat, concurrency, queues)
  local last = {}
  for q in words(queues) do
    if C('HINCRBY', K .. 'concurrency', q, -tonumber(concurrency)) <= 0 then
      C('HDEL', K .. 'concurrency', q)
      last[#last + 1] = q
    end
    C('SREM', K .. 'serving:' .. q, seat)
    C('ZREM', K .. 'idle:' .. q, seat)
  end
  if last[1] then remember_served(last) end
end

-- Apply an operator's drain, which overrides the worker: while drain:<seat> exists, the seat takes nothing. `draining` is the field of its
-- record ('op' by an operator, 1 by the worker, false); returns its new value.
local function apply_drain(seat, draining, concurrency, queues, record_ttl)
  local drained = C('PEXPIRE', K .. 'drain:' .. seat, record_ttl) == 1
  if drained and not draining then
    C('HSET', K .. 'seat:' .. seat, 'draining', 'op')
    note_drain(seat, queues)
    unlist_seat(seat, concurrency, queues)
    wake_queues(queues)
    return 'op'
  elseif draining == 'op' and not drained then
    C('HDEL', K .. 'seat:' .. seat, 'draining')
    set_unavailable(seat, '')
    list_seat(seat, concurrency, queues)
    mark_idle(seat, queues)
    return false
  end
  return draining
end

-- Lose the leases in the hash lost_slots:…, which were a seat's when it was removed. Return whether all are lost now; if not, the next call
-- goes on.
local function lose_leases(lost, why)
  local key = K .. lost
  while walked < MAX_WALK do
    local some = C('HRANDFIELD', key, 50, 'WITHVALUES')
    if not some[1] then return true end
    for i = 1, #some, 2 do
      attempt('leases', some[i + 1], function(lease) lose_lease(lease, why or 'its worker is gone', 'lost') end)
      C('HDEL', key, some[i])
      walked = walked + 10
    end
  end
  return C('EXISTS', key) == 0
end

-- Remove a seat that is no longer live: its leases are lost now. `died`: its process ended by itself, and a stage that ran there alone
-- counts as what killed it; among several nobody can tell which did.
local function remove_seat(seat, why, died)
  local concurrency, queues, draining, warm, lent_to = unpack(C('HMGET', K .. 'seat:' .. seat,
    'concurrency', 'queues', 'draining', 'warm', 'lent_to'))
  if lent_to then C('HDEL', K .. 'lent_seats', seat) end
  set_unavailable(seat, '')
  if warm and warm ~= '' then set_warm(seat, warm, '') end
  if C('ZREM', K .. 'seats', seat) == 1 then
    local gone = K .. 'gone_seats'  -- its next worker may start soon: jobs wait for it (gridq/seats/served_queues.py)
    C('ZADD', gone, NOW, seat)
    C('ZREMRANGEBYSCORE', gone, '-inf', NOW - 600000)
    C('ZREMRANGEBYRANK', gone, 0, -1001)
    C('PEXPIRE', gone, 600000)
    if not draining then unlist_seat(seat, concurrency, queues) end
  end
  C('DEL', P .. 'seat:' .. seat)
  local slots = K .. 'slots:' .. seat
  local leases = C('HLEN', slots)
  if leases == 1 then
    attempt('leases', C('HVALS', slots)[1], function(lease) lose_lease(lease, why, died and 'died' or 'lost') end)
    C('DEL', slots)
  elseif leases > 1 then
    local lost = 'lost_slots:' .. seat .. ':' .. C('INCR', K .. 'wake_up_number')  -- its next worker may fill its slots meanwhile
    C('RENAME', slots, K .. lost)
    if not lose_leases(lost, why) then
      C('ZADD', K .. 'long_work', NOW, lost)
      work_left = true
    end
  end
end

-- Go on with an entry of long_work: a job, or the leases of a seat that has gone. It is removed once all is done.
local function advance(entry)
  local done
  if string.find(entry, ':', 1, true) then done = lose_leases(entry)
  elseif C('EXISTS', job_key(entry)) == 1 then
    local working = C('HGET', job_key(entry), 'working')
    done = not (working and do_work(entry, working, {}))
  else done = clean_up(entry) end
  if done then C('ZREM', K .. 'long_work', entry) else work_left = true end
end
