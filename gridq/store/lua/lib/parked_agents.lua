-- What changes of limits and of what is used mean for others: agents over their limits are parked, their waiting stages stand aside until a
-- window resets or a limit is raised; seats and accounts get new limits.
--
-- There may be thousands of each, and nobody else is served while a script runs. So, as in lib/steps.lua, a call does a bounded part. What is
-- left stands in the list limits_work, in the order in which it arose, and long_work has the entry LIMITS_WORK. advance.lua goes on: whoever
-- began it calls it at once, and the router whose sweep finds the entry does the same for callers that died.
--
-- A piece of work is 'kind who cursor queue class':
--   stale              apply the limits in force to the accounts that have meters and that they do not name, or forget those
--   accounts           apply them to the agents and teams that they name
--   seats              apply them to the live seats
--   unpark             bring back agents that are no longer over their limits
--   queues             park `who` in each queue: * (all agents over their limits), t:<team>, or a:<agent>:<team>; for *, also wake a seat
--   class              park `who`, which is not one agent, in one class of a queue
-- Its cursor is that of HSCAN, SSCAN or ZSCAN: they find whatever is there from the first call to the last. What comes meanwhile is seen to by
-- who writes it: make_ready parks, and a seat that registers takes the limits in force. A piece that fails is left out, and so is a member of
-- what it scans: the others are done (lib/damage.lua).

local LIMITS_WORK = 'limits:'

-- Call `act` for some members of a hash (with their values), set or sorted set, from a cursor on. Return the next cursor, '0' at the end.
local function scan_some(command, key, cursor, act)
  local page = C(command, K .. key, cursor, 'COUNT', 50)
  for i = 1, #page[2], command == 'SSCAN' and 1 or 2 do
    attempt(key, page[2][i], function(member) act(member, page[2][i + 1]) end)
  end
  return page[1]
end

local function park_in_class(who, q, cls, agent)
  local first = C('ZRANGE', K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent, 0, 0)[1] or ''
  local team = C('HGET', job_key(string.match(first, '^[^:]*')), 'charged_team')
  walked = walked + 4
  if team and (who == 't:' .. team or who == '*' and is_over_limit(agent, team)) then
    C('ZREM', K .. 'ready:' .. q .. ':' .. cls, agent)
    park_class(q, cls, agent, team)
    walked = walked + 6
  end
end

local function park_in_queue(who, q)
  local agent, team = string.match(who, '^a:([^:]+):(.*)$')
  for _, cls in ipairs(is_free(q) and {} or C('HKEYS', K .. 'classes:' .. q)) do
    if not agent then C('RPUSH', K .. 'limits_work', 'class ' .. who .. ' 0 ' .. q .. ' ' .. cls)
    elseif C('ZREM', K .. 'ready:' .. q .. ':' .. cls, agent) == 1 then park_class(q, cls, agent, team) end
    walked = walked + 1
  end
  if who == '*' and C('EXISTS', K .. 'classes:' .. q) == 1 then
    wake_seat(q)
    walked = walked + 10
  end
  walked = walked + 2
end

-- Do some of a piece of work that parks. Return its next cursor, '0' if it is done; nil for other work.
local function do_parking(kind, who, cursor, q, cls)
  if kind == 'queues' then
    return scan_some('SSCAN', 'queues', cursor, function(queue) park_in_queue(who, queue) end)
  elseif kind == 'class' then
    return scan_some('ZSCAN', 'ready:' .. q .. ':' .. cls, cursor, function(agent) park_in_class(who, q, cls, agent) end)
  end
end

-- Go on with what is left, as far as this call may and `do_piece` knows the work. Return whether all is done.
local function do_limits_work(do_piece)
  local key = K .. 'limits_work'
  local text = C('LINDEX', key, 0)
  while text and walked < MAX_WALK do
    local kind, who, cursor, q, cls = string.match(text, '^(%S+) (%S+) (%S+) ?(%S*) ?(.*)$')
    local next_cursor, failed = attempt('limits_work', text, function() return do_piece(kind, who, cursor, q, cls) end)
    if not next_cursor and not failed then return false end
    if failed or next_cursor == '0' then C('LPOP', key)
    else C('LSET', key, 0, kind .. ' ' .. who .. ' ' .. next_cursor .. (q ~= '' and ' ' .. q .. ' ' .. cls or '')) end
    text = C('LINDEX', key, 0)
  end
  if not text then C('ZREM', K .. 'long_work', LIMITS_WORK) end
  return not text
end

-- Note pieces of work, after those that are left, for further calls.
local function leave_limits_work(...)
  C('RPUSH', K .. 'limits_work', ...)
  C('PEXPIRE', K .. 'limits_work', KEEP)
  C('ZADD', K .. 'long_work', NOW, LIMITS_WORK)
end

-- Park an agent ('a:<agent>:<team>') or all agents of a team ('t:<team>') that are over their limits.
local function park(who)
  attempt('limits_work', 'queues ' .. who .. ' 0', function(piece)
    leave_limits_work(piece)
    if not do_limits_work(function(...) return do_parking(...) end) then work_left = true end
  end)
end

-- Apply the limits in force to an account. `text`: its meters now, false for none.
local function apply_account_limits(name, limits, text)
  local function reserved_of(resource)
    if string.find(name, '^[at]:') then return sum_jobs(name)(resource) end
    return sum_leases_of(name)(resource)
  end
  local meters = limits and apply_limits(name, name, '', limits, text, reserved_of)
  if meters then C('HSET', K .. 'meters', name, meters) elseif text then C('HDEL', K .. 'meters', name) end
  walked = walked + 6
end

-- Agents without limits of their own get theirs with their first job.
local function apply_default_limits(name, text)
  walked = walked + 2
  if C('HEXISTS', K .. 'limits', 'm:' .. name) == 1 then return end  -- they name it
  local default = string.sub(name, 1, 2) == 'a:' and C('HEXISTS', K .. 'limits', name) == 0 and C('HGET', K .. 'limits', 'm:a:*')
  apply_account_limits(name, default, text)
end

-- Bring an agent back, level with those served now. One wake-up for each queue: the seat that answers it wakes the next.
local woken = {}
local function unpark_agent(agent)
  for _, place in ipairs(C('SMEMBERS', K .. 'parked:' .. agent)) do
    walked = walked + 8
    attempt('parked:' .. agent, place, function()
      local q, cls = string.match(place, '^(%S+) (.*)$')
      if C('EXISTS', K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent) == 0 then return end
      local times = K .. 'virtual_time:' .. string.match(q, '^[^:]+')
      local own, level = unpack(C('HMGET', times, agent, '*'))
      local v = math.max(tonumber(own or 0), tonumber(level or 0))
      C('HSET', times, agent, v)
      local ready = K .. 'ready:' .. q .. ':' .. cls
      C('ZADD', ready, v, agent)
      C('PEXPIRE', ready, KEEP)
      C('PEXPIRE', times, KEEP)
      if not woken[q] then wake_seat(q); woken[q] = true end
    end)
  end
  C('DEL', K .. 'parked:' .. agent)
  C('HDEL', K .. 'parked_agents', agent)
end

-- Do some of a piece of work of any kind, as do_parking does.
local function do_limits_piece(kind, who, cursor, q, cls)
  if kind == 'stale' then
    return scan_some('HSCAN', 'meters', cursor, function(name, text) apply_default_limits(name, text) end)
  elseif kind == 'accounts' then
    return scan_some('HSCAN', 'limits', cursor, function(field, limits)
      local name = string.match(field, '^m:([at]:.*)$')
      if name and name ~= 'a:*' then apply_account_limits(name, limits, C('HGET', K .. 'meters', name)) end
    end)
  elseif kind == 'seats' then
    return scan_some('ZSCAN', 'seats', cursor, function(seat)
      set_seat_limits(seat)
      walked = walked + 10
    end)
  elseif kind == 'unpark' then
    return scan_some('HSCAN', 'parked_agents', cursor, function(agent, team)
      if not is_over_limit(agent, string.match(team, '^%S+')) then unpark_agent(agent) end
      walked = walked + 4
    end)
  end
  return do_parking(kind, who, cursor, q, cls) or error('there is no such work', 0)
end

-- Go on with what is left of any kind. Return whether all is done.
local function advance_limits()
  local done, failed = attempt('limits_work', '', function()
    return do_limits_work(function(...) return do_limits_piece(...) end)
  end)
  if failed then C('ZREM', K .. 'long_work', LIMITS_WORK) end  -- it is no list, and nothing of it can be done
  return done or failed
end

-- Have agents brought back that are no longer over their limits. Use only grows within a window, so that is checked only when the windows or
-- the limits have changed.
local function unpark_due()
  if C('EXISTS', K .. 'parked_agents') == 0 then return end
  local mark = limits_mark()
  if C('GET', K .. 'parked_mark') == mark then return end
  C('SET', K .. 'parked_mark', mark, 'PX', KEEP)
  leave_limits_work('unpark * 0')
end
