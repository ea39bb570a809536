-- Seats that take no work for a while: their circuit breaker is open, their owner has paused them, an operator drains them, one of their
-- models is in cooldown, or their worker has ended. If only such seats could run a stage, it ends as new work is refused.
--
-- The hash `unavailable_seats` has the causes of each live seat as JSON, [{queues, since, until (ms, missing: not known), owner (true: it
-- seldom passes unless the seat's owner does something), state, reason}]. The seat's worker reports them when it registers or drains. With
-- `stopping`, its worker is about to end and finishes what it runs. `gone_seats` has the seats whose worker has ended, by time.

-- Note why a seat takes no work; '' if it takes some. The worker's clock may differ, so it reports `began_ms` ago and `ends_ms` from now.
local function set_unavailable(seat, causes)
  if causes == '' then C('HDEL', K .. 'unavailable_seats', seat); return end
  local list = cjson.decode(causes)
  for _, cause in ipairs(list) do
    cause.since, cause['until'] = NOW - cause.began_ms, cause.ends_ms and NOW + cause.ends_ms
    cause.began_ms, cause.ends_ms = nil, nil
  end
  C('HSET', K .. 'unavailable_seats', seat, cjson.encode(list))
  C('PEXPIRE', K .. 'unavailable_seats', KEEP)
end

-- Note that an operator drains a seat, or that its worker is stopping; nobody knows for how long.
local function note_drain(seat, queues, stopping)
  local list = {}
  for q in words(queues) do list[#list + 1] = q end
  C('HSET', K .. 'unavailable_seats', seat, cjson.encode({{queues = list, since = NOW, owner = false, state = 'draining',
    stopping = stopping, reason = stopping and 'its worker is stopping' or 'an operator drains it'}}))
  C('PEXPIRE', K .. 'unavailable_seats', KEEP)
end

-- Return the causes of all seats by queue, each with its seat; nil if there are none. Read once in a script.
local unavailable_cache
local function read_unavailable()
  if unavailable_cache ~= nil then return unavailable_cache or nil end
  local by_queue
  local function add(q, cause)
    by_queue = by_queue or {}
    by_queue[q] = by_queue[q] or {}
    table.insert(by_queue[q], cause)
  end
  local all = C('HGETALL', K .. 'unavailable_seats')
  C('PEXPIRE', K .. 'unavailable_seats', KEEP)
  for i = 1, #all, 2 do
    local seat = all[i]
    local _, failed = attempt('unavailable_seats', seat, function()
      for _, cause in ipairs(cjson.decode(all[i + 1])) do
        cause.seat = seat
        for _, q in ipairs(cause.queues) do add(q, cause) end
      end
    end)
    if failed then C('HDEL', K .. 'unavailable_seats', seat) end
  end
  local gone = C('ZRANGE', K .. 'gone_seats', 0, -1, 'WITHSCORES')
  for i = 1, #gone, 2 do
    local cause = {seat = gone[i], since = tonumber(gone[i + 1]), state = 'gone', reason = 'its worker has ended'}
    local _, failed = attempt('gone_seats', gone[i], function(seat)
      for q in words(C('HGET', K .. 'seat:' .. seat, 'queues')) do add(q, cause) end
    end)
    if failed then C('ZREM', K .. 'gone_seats', gone[i]) end
  end
  unavailable_cache = by_queue or false
  return by_queue
end

local REPAIR = "the seat's owner fixes the cause, and runs `gridq seat retry`"

-- Return the first three causes as text.
local function format_causes(causes)
  local reasons = {}
  for i = 1, math.min(#causes, 3) do
    local cause = causes[i]
    reasons[i] = cause.seat .. ' is ' .. cause.state .. (cause.reason ~= '' and ': ' .. cause.reason or '')
  end
  return table.concat(reasons, '; ')
end

-- Build the error of a stage that nobody can run now. `causes`: those of the seats that could. All of them are gone, or none.
local function build_unavailable_error(path, queues, causes)
  local back_at
  for _, cause in ipairs(causes) do
    if cause['until'] and (not back_at or cause['until'] < back_at) then back_at = cause['until'] end
  end
  return cjson.encode({error = 'NoLiveSeat', code = 'seat.none_live', message = 'No live seat serves ' .. unescape(table.concat(queues, ' or ')),
    details = {path = path, queue = queues[1], queues = #queues > 1 and queues or nil, reason = format_causes(causes),
      retry_after = back_at and math.max(math.ceil((back_at - NOW) / 1000), 1) or nil,
      fix = causes[1].state == 'withdrawn' and 'ask for another model, or submit with wait_for_seat'
        or 'try again later, or submit with wait_for_seat; ' .. (causes[1].state == 'gone' and "start the seat's worker" or REPAIR)}})
end

-- Return what the causes of a queue's seats mean for an agent's stages that exclude the seats in `unfit`: whether they wait for a worker that
-- starts again (`hold`), the causes of live seats and of gone ones, since when there is one, whether all need their owner, when the first ends,
-- and when the first ends of those that do not. There may be thousands, so it is computed once in a script, for all agents if no seat is lent.
local sums = {}
local function sum_causes(q, all, unfit, agent, team)
  if all.lent == nil then
    all.lent = false
    for _, cause in ipairs(all) do
      is_seat_lent_to(cause.seat, agent, team)
      if lent_cache[cause.seat] then all.lent = true end
    end
  end
  local id = q .. ' ' .. unfit .. (all.lent and ' ' .. agent .. ' ' .. (team or '') or '')
  if sums[id] then return sums[id] end
  local sum = {hold = false, causes = {}, gone = {}, since = 0, needs_owner = true, next_at = FOREVER, back_at = FOREVER}
  for _, cause in ipairs(all) do
    if not is_excluded(unfit, cause.seat) and (not all.lent or is_seat_lent_to(cause.seat, agent, team)) then
      if cause.stopping or cause.state == 'gone' and NOW < cause.since + HOLD then sum.hold = true end
      if cause.state == 'gone' then table.insert(sum.gone, cause)
      else
        table.insert(sum.causes, cause)
        sum.since, sum.needs_owner = math.max(sum.since, cause.since), sum.needs_owner and cause.owner
        sum.next_at = math.min(sum.next_at, cause['until'] or FOREVER)
        if not cause.owner then sum.back_at = math.min(sum.back_at, cause['until'] or 0) end  -- one without an end may end at any time
      end
    end
  end
  sums[id] = sum
  return sum
end

-- Return the error that ends a waiting stage because all seats that could run it are unavailable; nil if it may wait. `by_queue`: what
-- read_unavailable returns.
--
-- It waits for HOLD ms, as new work does at a gateway, and for a worker that is stopping or has ended less than HOLD ms ago: the next one may
-- just start. Then it ends if each cause needs the owner of its seat, if none ends before the job's deadline, or if a client waits for the
-- answer on an open connection. It goes on if its job said wait_for_seat, or if all workers are gone and no client waits.
local function find_unavailable_error(job, step, by_queue)
  local header, unfit, chain, agent, team, ready_at, patient, client_waits, deadline = unpack(C('HMGET', job_key(job), 'header:' .. step,
    'unfit:' .. step, 'chain:' .. step, 'agent', 'team', 'ready_at:' .. step, 'wait_for_seat', 'client_waits', 'deadline'))
  if not header or patient then return nil end
  local h = read_header(nil, nil, header)
  local links = chain and parse_chain(chain) or {{q = h.q, unfit = unfit or ''}}
  local causes, gone, queues, since, needs_owner, next_at, back_at = {}, {}, {}, tonumber(ready_at or 0), true, FOREVER, FOREVER
  for i, link in ipairs(links) do
    if any_seat(link.q, function(seat) return not is_excluded(link.unfit, seat) and is_seat_lent_to(seat, agent, team) end) then return nil end
    queues[i] = link.q
    local sum = sum_causes(link.q, by_queue[link.q] or {}, link.unfit, agent, team)
    if sum.hold then return nil end
    for _, cause in ipairs(sum.causes) do causes[#causes + 1] = cause end
    for _, cause in ipairs(sum.gone) do gone[#gone + 1] = cause end
    since, needs_owner = math.max(since, sum.since), needs_owner and sum.needs_owner
    next_at, back_at = math.min(next_at, sum.next_at), math.min(back_at, sum.back_at)
  end
  if not causes[1] and not gone[1] and client_waits then  -- the seat that had them is live with others: its engine's models are others
    for _, q in ipairs(queues) do
      local left_at = C('ZSCORE', K .. 'served_queues', q)
      if left_at then
        gone[#gone + 1] = {seat = unescape(q), state = 'withdrawn', reason = 'no seat offers it any more'}
        since = math.max(since, tonumber(left_at) * 1000)
      end
    end
  end
  if NOW < since + HOLD or next_at <= NOW then return nil end  -- a seat whose cooldown is over is about to be tried
  if not causes[1] then return gone[1] and client_waits and build_unavailable_error(h.path, queues, gone) or nil end
  if needs_owner or client_waits or back_at > tonumber(deadline) then return build_unavailable_error(h.path, queues, causes) end
end
