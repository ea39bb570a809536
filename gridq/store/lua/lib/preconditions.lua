-- Who may begin something new: programs of the data's own schema, and new jobs as long as the server has memory.

-- Return the error for a program of another schema than the data's (SCHEMA, the data's schema, live seats, jobs), nil if it is
-- the same.
-- The first program on a new grid sets the schema. A newer one raises it if no seat is live and no job runs or waits; an older
-- one never does. `at`: the data's schema. `dead`: seats whose lease has lapsed are known to be dead.
local function check_schema(at, dead)
  if at == SCHEMA then return nil end
  at = tonumber(at or 0)
  local seats = dead and C('ZCOUNT', K .. 'seats', NOW, '+inf') or C('ZCARD', K .. 'seats')
  local jobs = C('ZCARD', K .. 'deadlines')
  if at < tonumber(SCHEMA) and seats == 0 and jobs == 0 then
    C('SET', K .. 'schema', SCHEMA)
    -- Before schema 5 the API keys were in `keys`. Without them the grid would be open to everybody.
    if C('EXISTS', K .. 'keys') == 1 then C('RENAMENX', K .. 'keys', K .. 'api_keys') end
    return nil
  end
  return redis.error_reply('SCHEMA ' .. at .. ' ' .. seats .. ' ' .. jobs)
end

-- Return the error of check_schema, if any, and the error for a new job while the server is out of memory (FULL, bytes used,
-- limit).
local function check_gate()
  local schema, memory_full = unpack(C('MGET', K .. 'schema', K .. 'memory_full'))
  return check_schema(schema), memory_full and redis.error_reply('FULL ' .. memory_full)
end
