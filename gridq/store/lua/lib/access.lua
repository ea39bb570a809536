-- Who may submit.

-- Why a submission by this key is refused: missing (the grid has keys and none came), unknown, revoked; false where it may. The
-- key's secret was checked by whoever read it; here it must still stand and be that agent's. Second: the key's team or '-'.
local function key_fault(id, agent)
  if id == '' then return C('EXISTS', K .. 'keys') == 1 and 'missing', '-' end
  local text = C('HGET', K .. 'keys', id)
  local key = text and cjson.decode(text) or {}
  if key.agent ~= agent then return 'unknown', '-' end
  return key.ends ~= nil and key.ends <= NOW and 'revoked', key.team or '-'
end
