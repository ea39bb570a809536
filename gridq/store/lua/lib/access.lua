-- Who may submit, and whom a seat is lent to.

-- Whether a seat is lent to an agent or its team. `only`: whom it is lent to alone ('a:<agent>' and 't:<team>', space separated),
-- as its record says it; false or nil: to everybody.
local function is_lent_to(only, agent, team)
  if not only then return true end
  only = ' ' .. only .. ' '
  return string.find(only, ' a:' .. agent .. ' ', 1, true) ~= nil
    or team and team ~= '-' and string.find(only, ' t:' .. team .. ' ', 1, true) ~= nil or false
end

-- Why a submission by this key is refused: missing (the grid has keys and none came), unknown, revoked; false where it may. The
-- key's secret was checked by whoever read it; here it must still stand and be that agent's. Second: the key's team or '-'.
local function check_api_key(id, agent)
  if id == '' then return C('EXISTS', K .. 'api_keys') == 1 and 'missing', '-' end
  local text = C('HGET', K .. 'api_keys', id)
  local key = text and cjson.decode(text) or {}
  if key.agent ~= agent then return 'unknown', '-' end
  return key.ends ~= nil and key.ends <= NOW and 'revoked', key.team or '-'
end

-- The team that an agent counts for: the one that the limits name, else its key's.
local function team_of(agent, team)
  local own = string.match(C('HGET', K .. 'limits', 'a:' .. agent) or '', '^%S+')
  return own and own ~= '-' and own or team
end

-- The refusal where all live seats of one of the `queues` are lent to others: {'barred', queue, seat, whom that is lent to, …}. Of
-- queues with | between them one is enough. lends: seat → whom it is lent to alone.
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
