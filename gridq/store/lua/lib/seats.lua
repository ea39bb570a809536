-- Seats that go.

-- Of each lease that was lost in this call: lease, worker, path, job's name, what came of it (again | plain | celery).
local losses = {}

-- kind: lost, or died where the stage is held to have killed its worker.
local function lose_lease(lease, why, kind)
  local seat, names = close_lease(lease)
  if not seat then return 0 end
  local job, step = parse_lease(lease)
  local f = C('HMGET', job_key(job), 'name', 'agent', 'header:' .. step, 'started_at:' .. step, 'pieces:' .. step)
  local name, h, cut = f[1], f[3], f[5]
  local of = describe_attempt(f[2], h, f[4])
  remember_closed(lease, seat, '-', of, names)
  record_attempt('lost', lease, seat, of, 0, 0, 0, false, names)
  count_outcomes(seat, 0, 1)
  if not h then return 0 end
  C('HINCRBY', K .. 'attempts_lost', 'count', 1)
  C('PEXPIRE', K .. 'attempts_lost', KEEP)
  -- What the job ends with if this was the last loss; where its first token is out, the only one.
  local record = cut and '{"error":"StreamCut","code":"stage.stream_cut","message":"The answer broke off after it had begun"'
    or kind == 'died' and '{"error":"StageQuarantined","code":"stage.quarantined","message":"The stage killed the process that ran it, twice"'
    or '{"error":"AttemptsExhausted","code":"stage.attempts_exhausted","message":"The stage lost every seat that ran it"'
  if kind == 'died' then C('HDEL', job_key(job), 'lease:' .. step) end  -- nothing will come of it any more
  local worker = C('HGET', K .. 'seat:' .. seat, 'worker') or seat
  local details = {reason = why, worker = worker, path = read_header(job, step, h).path}
  local after = end_attempt(job, step, seat, kind or 'lost', 0, record .. ',"details":' .. cjson.encode(details) .. '}')
  local stays = after == 'again' or after == 'quarantined'
  publish_stop(stays and 'retried' or 'failed', job .. '.' .. step, seat, 'lost: ' .. why)
  for _, word in ipairs({lease, worker, details.path, name or '', after}) do
    losses[#losses + 1] = word
  end
  return 1
end

-- Who calls a sweep tells of what was lost; what was lost in another call is kept for the next of them.
local function keep_losses()
  if not losses[1] then return end
  C('RPUSH', K .. 'unreported_losses', unpack(losses))
  C('LTRIM', K .. 'unreported_losses', -5000, -1)
  C('PEXPIRE', K .. 'unreported_losses', 60000)
end

-- The queues whose model the seat has loaded, said anew.
local function set_warm(seat, before, now)
  for q in words(before) do C('ZREM', K .. 'warm:' .. q, seat) end
  for q in words(now) do C('ZADD', K .. 'warm:' .. q, NOW, seat) end
  C('HSET', K .. 'seat:' .. seat, 'warm', now)
end

-- How long stages take on a seat, 'queue=ms …', said anew: what is not `told` stays as it was `before`, in the queues that it serves.
local function merge_times(before, told, queues)
  local known, list = {}, {}
  for _, text in ipairs({before or '', told}) do
    for q, ms in string.gmatch(text, '(%S+)=(%d+)') do known[q] = ms end
  end
  for q in words(queues) do if known[q] then list[#list + 1] = q .. '=' .. known[q] end end
  return table.concat(list, ' ')
end

-- Whether a seat is counted at its queues, as long as it is live and takes work.
local function list_seat(seat, concurrency, queues)
  for q in words(queues) do
    C('HINCRBY', K .. 'concurrency', q, concurrency)
    C('SADD', K .. 'serving:' .. q, seat)
  end
end

local function unlist_seat(seat, concurrency, queues)
  for q in words(queues) do
    if C('HINCRBY', K .. 'concurrency', q, -tonumber(concurrency)) <= 0 then C('HDEL', K .. 'concurrency', q) end
    C('SREM', K .. 'serving:' .. q, seat)
    C('ZREM', K .. 'idle:' .. q, seat)
  end
end

-- An operator's word holds whatever the worker says: while drain:<seat> is there, the seat takes nothing. `draining` ('op' by
-- an operator, 1 by the worker itself, false) is what its record says; gives what it says now.
local function apply_drain(seat, draining, concurrency, queues, ttl)
  local drained = C('PEXPIRE', K .. 'drain:' .. seat, ttl) == 1
  if drained and not draining then
    C('HSET', K .. 'seat:' .. seat, 'draining', 'op')
    unlist_seat(seat, concurrency, queues)
    for q in words(queues) do if C('EXISTS', K .. 'classes:' .. q) == 1 then wake_seat(q) end end
    return 'op'
  elseif draining == 'op' and not drained then
    C('HDEL', K .. 'seat:' .. seat, 'draining')
    list_seat(seat, concurrency, queues)
    mark_idle(seat, queues)
    return false
  end
  return draining
end

-- The seat is no longer live: its leases are lost now, its slots are listened to by nobody. `died`: its process ended by
-- itself, and a stage that ran there alone is held to have killed it; of several it cannot be told which.
local function remove_seat(seat, why, died)
  local f = C('HMGET', K .. 'seat:' .. seat, 'concurrency', 'queues', 'draining', 'warm', 'lent_to')
  if f[5] then C('HDEL', K .. 'lent_seats', seat) end
  if f[4] and f[4] ~= '' then set_warm(seat, f[4], '') end
  if C('ZREM', K .. 'seats', seat) == 1 and not f[3] then unlist_seat(seat, f[1], f[2]) end
  C('DEL', P .. 'seat:' .. seat)
  local leases = C('HVALS', K .. 'slots:' .. seat)
  for _, lease in ipairs(leases) do lose_lease(lease, why, died and #leases == 1 and 'died' or 'lost') end
  C('DEL', K .. 'slots:' .. seat)
end
