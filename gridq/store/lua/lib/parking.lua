-- Agents over their money: what they have pending stands aside until the window turns or a limit is raised.

-- Let what one agent has pending stand aside.
local function park_agent(agent, team)
  for _, q in ipairs(C('SMEMBERS', K .. 'queues')) do
    if not is_free(q) then
      for _, cls in ipairs(C('HKEYS', K .. 'classes:' .. q)) do
        if C('ZREM', K .. 'ready:' .. q .. ':' .. cls, agent) == 1 then park_class(q, cls, agent, team) end
      end
    end
  end
end

-- The same of every agent that is over, of one team where it is named: a limit was lowered, a team has used up its money.
local function park_agents(only)
  for _, q in ipairs(C('SMEMBERS', K .. 'queues')) do
    for _, cls in ipairs(is_free(q) and {} or C('HKEYS', K .. 'classes:' .. q)) do
      local rdy = K .. 'ready:' .. q .. ':' .. cls
      for _, agent in ipairs(C('ZRANGE', rdy, 0, -1)) do
        local first = C('ZRANGE', K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent, 0, 0)[1] or ''
        local team = C('HGET', job_key(string.match(first, '^[^:]*')), 'charged_team')
        if team and (only == team or not only and is_over_limit(agent, team)) then
          C('ZREM', rdy, agent)
          park_class(q, cls, agent, team)
        end
      end
    end
  end
end

-- An agent comes back, level with those served now. One wake-up for each queue: who answers it rings for the next.
local woken = {}
local function unpark_agent(agent)
  for _, m in ipairs(C('SMEMBERS', K .. 'parked:' .. agent)) do
    local q, cls = string.match(m, '^(%S+) (.*)$')
    if C('EXISTS', K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent) == 1 then
      local vt = K .. 'virtual_time:' .. string.match(q, '^[^:]+')
      local times = C('HMGET', vt, agent, '*')
      local v = math.max(tonumber(times[1] or 0), tonumber(times[2] or 0))
      C('HSET', vt, agent, v)
      local rdy = K .. 'ready:' .. q .. ':' .. cls
      C('ZADD', rdy, v, agent)
      C('PEXPIRE', rdy, KEEP)
      C('PEXPIRE', vt, KEEP)
      if not woken[q] then wake_seat(q); woken[q] = true end
    end
  end
  C('DEL', K .. 'parked:' .. agent)
  C('HDEL', K .. 'parked_agents', agent)
end

-- Bring back whoever is no longer over, up to 200 at a time. What an agent has spent only grows within a window, so there is
-- nothing to look at before the window or the limits are others than when it was looked at last.
local function unpark_due()
  local list, now, back = C('HGETALL', K .. 'parked_agents'), nil, 0
  for i = 1, #list, 2 do
    now = now or limits_mark()
    local team, seen = string.match(list[i + 1], '^(%S+) (.*)$')
    if seen ~= now then
      if is_over_limit(list[i], team) then C('HSET', K .. 'parked_agents', list[i], team .. ' ' .. now)
      else unpark_agent(list[i]); back = back + 1 end
      if back >= 200 then break end  -- nobody else is served meanwhile: the next sweep goes on
    end
  end
  return back
end
