-- Entries that cannot be processed, because something other than a script has written them or what they name: an operator's edit, a lost write.
-- Such an entry costs only itself. It is put aside where that is possible, the others go on, and the next sweep reports it.

-- Call `act` with an entry of a set, list or hash. If it fails, keep that for the next sweep. Return what `act` returns, or nil and true.
local function attempt(set, entry, act)
  local done, result = pcall(act, entry)
  if done then return result end
  local key, fault = K .. 'unreported_damage', type(result) == 'table' and result.err or result
  redis.pcall('RPUSH', key, set, entry or '', tostring(fault))
  redis.pcall('LTRIM', key, -3000, -1)
  redis.pcall('PEXPIRE', key, KEEP)
  return nil, true
end

-- Return {set, entry, fault …} of all that could not be processed since the last call.
local function take_damage()
  local found = redis.pcall('LPOP', K .. 'unreported_damage', 3000)
  if found and found.err then C('DEL', K .. 'unreported_damage') end
  return found and not found.err and found or {}
end
