-- Seats that are live and take nothing for a while: their circuit breaker is open, their owner has paused them, an operator drains them, or
-- one of their models rests. A stage that only such seats could run ends as new work is refused.
--
-- The hash `resting` has for each such seat its rests as JSON, [{queues, since, until (ms, missing: not known), owner (true: it seldom passes
-- unless the seat's owner does something), state, reason}]. Its worker tells them when it registers or drains.

-- Note the rests of a seat; '' for none. The worker's clock may differ: it tells `began_ms` ago and `ends_ms` from now.
local function set_rests(seat, rests)
  if rests == '' then C('HDEL', K .. 'resting', seat); return end
  local list = cjson.decode(rests)
  for _, rest in ipairs(list) do
    rest.since, rest['until'] = NOW - rest.began_ms, rest.ends_ms and NOW + rest.ends_ms
    rest.began_ms, rest.ends_ms = nil, nil
  end
  C('HSET', K .. 'resting', seat, cjson.encode(list))
  C('PEXPIRE', K .. 'resting', KEEP)
end

-- Note that an operator drains a seat; nobody knows for how long.
local function note_drain(seat, queues)
  local list = {}
  for q in words(queues) do list[#list + 1] = q end
  C('HSET', K .. 'resting', seat, cjson.encode({{queues = list, since = NOW, owner = false, state = 'draining',
    reason = 'an operator drains it'}}))
  C('PEXPIRE', K .. 'resting', KEEP)
end

-- Return the rests of all seats by queue, each with its seat; nil if no seat rests.
local function read_rests()
  local all, by_queue = C('HGETALL', K .. 'resting'), nil
  C('PEXPIRE', K .. 'resting', KEEP)
  for i = 1, #all, 2 do
    for _, rest in ipairs(cjson.decode(all[i + 1])) do
      rest.seat = all[i]
      for _, q in ipairs(rest.queues) do
        by_queue = by_queue or {}
        by_queue[q] = by_queue[q] or {}
        table.insert(by_queue[q], rest)
      end
    end
  end
  return by_queue
end

-- Build the error of a stage that nobody can run now. `rests`: those of the seats that could.
local function build_rest_error(path, queues, rests)
  local reasons, back_at = {}, nil
  for _, rest in ipairs(rests) do
    if #reasons < 3 then reasons[#reasons + 1] = rest.seat .. ' is ' .. rest.state .. (rest.reason ~= '' and ': ' .. rest.reason or '') end
    if rest['until'] and (not back_at or rest['until'] < back_at) then back_at = rest['until'] end
  end
  return cjson.encode({error = 'NoLiveSeat', code = 'seat.none_live', message = 'No live seat serves ' .. table.concat(queues, ' or '),
    details = {path = path, queue = queues[1], queues = #queues > 1 and queues or nil, reason = table.concat(reasons, '; '),
      retry_after = back_at and math.max(math.ceil((back_at - NOW) / 1000), 1) or nil,
      fix = 'try again later, or submit with wait_for_seat; the owner of a seat repairs it, then `gridq seat retry`'}})
end

-- Return the error that ends a waiting stage because all seats that could run it rest; nil if it goes on. `by_queue`: as from read_rests.
--
-- It waits for HOLD ms, as new work does at a gateway. Then it ends if each of the rests needs the owner of its seat, if none ends before
-- the job's deadline, or if a client waits for the answer on an open connection. It goes on if its job said wait_for_seat.
local function find_rest_error(job, step, by_queue)
  local header, unfit, chain, agent, team, ready_at, patient, client_waits, deadline = unpack(C('HMGET', job_key(job), 'header:' .. step,
    'unfit:' .. step, 'chain:' .. step, 'agent', 'team', 'ready_at:' .. step, 'wait_for_seat', 'client_waits', 'deadline'))
  if not header or patient then return nil end
  local h = read_header(nil, nil, header)
  local links = chain and parse_chain(chain) or {{q = h.q, unfit = unfit or ''}}
  local rests, queues, since, needs_owner, next_at, back_at = {}, {}, tonumber(ready_at or 0), true, FOREVER, FOREVER
  for i, link in ipairs(links) do
    local function suits(seat)
      if is_excluded(link.unfit, seat) then return false end
      if lent_cache[seat] == nil then lent_cache[seat] = C('HGET', K .. 'seat:' .. seat, 'lent_to') end
      return is_lent_to(lent_cache[seat], agent, team)
    end
    if any_seat(link.q, suits) then return nil end
    queues[i] = link.q
    for _, rest in ipairs(by_queue[link.q] or {}) do
      if suits(rest.seat) then
        rests[#rests + 1] = rest
        since, needs_owner = math.max(since, rest.since), needs_owner and rest.owner
        next_at = math.min(next_at, rest['until'] or FOREVER)
        if not rest.owner then back_at = math.min(back_at, rest['until'] or 0) end  -- one without an end may end at any time
      end
    end
  end
  if not rests[1] or NOW < since + HOLD or next_at <= NOW then return nil end  -- a rest that is over is about to be tried
  if needs_owner or client_waits or back_at > tonumber(deadline) then return build_rest_error(h.path, queues, rests) end
end
