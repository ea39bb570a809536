-- Who may submit, and whom a seat is lent to.

-- Return whether a seat is lent to an agent or its team; without an agent, whether to everybody. `only`: the only ones it is lent to
-- ('a:<agent>' and 't:<team>', space separated), as its record says; false or nil: everybody.
local function is_lent_to(only, agent, team)
  if not only or not agent then return not only end
  only = ' ' .. only .. ' '
  return string.find(only, ' a:' .. agent .. ' ', 1, true) ~= nil
    or team and team ~= '-' and string.find(only, ' t:' .. team .. ' ', 1, true) ~= nil or false
end

-- Return why an API key is refused (missing, unknown or revoked), false if it is not, and the key's team or '-'. The caller has
-- checked the key's secret; here it must still exist and belong to the agent.
local function check_api_key(id, agent)
  if id == '' then return C('EXISTS', K .. 'api_keys') == 1 and 'missing', '-' end
  local text = C('HGET', K .. 'api_keys', id)
  local key = text and cjson.decode(text) or {}
  if key.agent ~= agent then return 'unknown', '-' end
  return key.ends ~= nil and key.ends <= NOW and 'revoked', key.team or '-'
end

-- Return the team that an agent counts for: the one in the limits, else its key's.
local function team_of(agent, team)
  local own = string.match(C('HGET', K .. 'limits', 'a:' .. agent) or '', '^%S+')
  return own and own ~= '-' and own or team
end

-- Return the refusal if all live seats of one of the `queues` are lent to others: {not_lent, queue, seat, whom it is lent to, …}.
-- One of several alternatives (with | between them) is enough.
local function find_not_lent(queues, agent, team)
  if C('EXISTS', K .. 'lent_seats') == 0 then return nil end
  team = team_of(agent, team)
  for links in words(queues) do
    local found, free = {'not_lent', links}, false
    for q in string.gmatch(links, '[^|]+') do
      for _, seat in ipairs(free and {} or C('SMEMBERS', K .. 'serving:' .. q)) do
        local only = C('HGET', K .. 'lent_seats', seat)
        free = is_lent_to(only, agent, team)
        if free then break end
        found[#found + 1], found[#found + 2] = seat, only
      end
    end
    if not free and found[3] then return found end
  end
end
