-- The order in which waiting stages are claimed: by priority, by the model that is loaded, then by each agent's fair turn (virtual time).

-- How long, in ms, others may be passed over for a session's next stage, or for a stage whose model is loaded if its seat states no other
-- time.
local AFFINITY = 2000

-- Return the first members of a sorted set and some from further on, other ones each time: where each must be checked, none stays hidden.
local function sample(key)
  local found, n = C('ZRANGE', key, 0, 7), C('ZCARD', key)
  local from = n > 8 and 8 + NOW % (n - 8) or n
  for _, member in ipairs(C('ZRANGE', key, from, from + 7)) do found[#found + 1] = member end
  return found
end

-- Drop the entry of a stage that can never run: its job's keys have expired, or it is damaged.
local function drop_entry(c)
  local waiting, classes = K .. 'waiting:' .. c.q .. ':' .. c.cls .. ':' .. c.agent, K .. 'classes:' .. c.q
  if c.step and C('ZREM', waiting, c.step) == 1 and C('HINCRBY', classes, c.cls, -1) <= 0 then C('HDEL', classes, c.cls) end
  if C('EXISTS', waiting) == 0 then C('ZREM', K .. 'ready:' .. c.q .. ':' .. c.cls, c.agent) end
end

-- Find the first stage of a candidate's agent that this seat may run (c.step, c.score). Return its ready time, FOREVER if there is none.
local function first_stage(c, seat)
  if c.step ~= nil then return c.score or FOREVER end
  c.step = false
  local waiting = 'waiting:' .. c.q .. ':' .. c.cls .. ':' .. c.agent
  local _, failed = attempt(waiting, '', function()
    if not c.mixed then
      local first = C('ZRANGE', K .. waiting, 0, 0, 'WITHSCORES')
      if first[1] then c.step, c.score = first[1], tonumber(first[2]) end
      return
    end
    for _, member in ipairs(sample(K .. waiting)) do
      local suits, damaged = attempt(waiting, member, function()
        local job, step = string.match(member, '^([^:]+):(.+)$')
        local excluded, team, tokens = unpack(C('HMGET', job_key(job), 'excluded:' .. step, 'team', 'tokens:' .. step))
        return not is_excluded(excluded or '', seat) and is_lent_to(c.only, c.agent, team) and not c.lacks(tokens)
      end)
      if damaged then drop_entry({q = c.q, cls = c.cls, agent = c.agent, step = member}) end
      if suits then
        c.step, c.score = member, tonumber(C('ZSCORE', K .. waiting, member))
        return
      end
    end
  end)
  if failed then C('ZREM', K .. 'ready:' .. c.q .. ':' .. c.cls, c.agent) end
  return c.score or FOREVER
end

-- Return whether a candidate whose model is not loaded here may still be passed over: until it has been ready for c.patience ms, and the
-- loaded models have been the same for so long (since c.since).
local function is_patient(c, seat) return not c.warm and math.max(first_stage(c, seat), c.since) > NOW - c.patience end

-- Return whether candidate a goes before b: by priority; then one whose model is loaded here, if the other may be passed over; then by
-- their agents' virtual time (relative to the kind's, for each kind has its own), then by ready time.
local function goes_before(a, b, seat)
  if a.priority ~= b.priority then return a.priority < b.priority end
  if a.warm ~= b.warm and is_patient(a.warm and b or a, seat) then return a.warm end
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
