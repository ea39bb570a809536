-- Agents over their limits: their waiting stages are parked until a window resets or a limit is raised.

-- Park what one agent has waiting.
local function park_agent(agent, team)
  for _, q in ipairs(C('SMEMBERS', K .. 'queues')) do
    if not is_free(q) then
      for _, cls in ipairs(C('HKEYS', K .. 'classes:' .. q)) do
        if C('ZREM', K .. 'ready:' .. q .. ':' .. cls, agent) == 1 then park_class(q, cls, agent, team) end
      end
    end
  end
end

-- Park every agent that is over its limits, or, with `only`, every agent of a team that has used up its money.
local function park_agents(only)
  for _, q in ipairs(C('SMEMBERS', K .. 'queues')) do
    for _, cls in ipairs(is_free(q) and {} or C('HKEYS', K .. 'classes:' .. q)) do
      local ready = K .. 'ready:' .. q .. ':' .. cls
      for _, agent in ipairs(C('ZRANGE', ready, 0, -1)) do
        local first = C('ZRANGE', K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent, 0, 0)[1] or ''
        local team = C('HGET', job_key(string.match(first, '^[^:]*')), 'charged_team')
        if team and (only == team or not only and is_over_limit(agent, team)) then
          C('ZREM', ready, agent)
          park_class(q, cls, agent, team)
        end
      end
    end
  end
end

-- Bring an agent back, level with those served now. One wake-up for each queue: the seat that answers it wakes the next.
local woken = {}
local function unpark_agent(agent)
  for _, place in ipairs(C('SMEMBERS', K .. 'parked:' .. agent)) do
    local q, cls = string.match(place, '^(%S+) (.*)$')
    if C('EXISTS', K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent) == 1 then
      local times = K .. 'virtual_time:' .. string.match(q, '^[^:]+')
      local own, level = unpack(C('HMGET', times, agent, '*'))
      local v = math.max(tonumber(own or 0), tonumber(level or 0))
      C('HSET', times, agent, v)
      local ready = K .. 'ready:' .. q .. ':' .. cls
      C('ZADD', ready, v, agent)
      C('PEXPIRE', ready, KEEP)
      C('PEXPIRE', times, KEEP)
      if not woken[q] then wake_seat(q); woken[q] = true end
    end
  end
  C('DEL', K .. 'parked:' .. agent)
  C('HDEL', K .. 'parked_agents', agent)
end

local MAX_UNPARKED = 100  -- agents in a call

-- Bring back agents that are no longer over their limits. Use only grows within a window, so an agent is checked again only when the windows
-- or the limits have changed.
local function unpark_due()
  local list, now, back = C('HGETALL', K .. 'parked_agents'), nil, 0
  for i = 1, #list, 2 do
    now = now or limits_mark()
    local team, checked = string.match(list[i + 1], '^(%S+) (.*)$')
    if checked ~= now then
      if is_over_limit(list[i], team) then C('HSET', K .. 'parked_agents', list[i], team .. ' ' .. now)
      else unpark_agent(list[i]); back = back + 1 end
      if back >= MAX_UNPARKED then break end  -- nobody else is served meanwhile: the next sweep goes on
    end
  end
  return back
end
