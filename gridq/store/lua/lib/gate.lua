-- Who may begin something new: a program of the data's own schema, and a job as long as the server has memory.

-- The refusal of a program of another schema than the data's ('SCHEMA', the data's, live seats, jobs), nil where it is the same.
-- The first program on a grid that has never had one says which it is, a newer one on a grid where no seat is live and no job runs
-- or waits; an older one never does. `at`: what the caller has read of it. `dead`: lapsed seats are known to be dead.
local function check_schema(at, dead)
  if at == SCHEMA then return nil end
  at = tonumber(at or 0)
  local seats = dead and C('ZCOUNT', K .. 'seats', NOW, '+inf') or C('ZCARD', K .. 'seats')
  local jobs = C('ZCARD', K .. 'deadlines')
  if at < tonumber(SCHEMA) and seats == 0 and jobs == 0 then
    C('SET', K .. 'schema', SCHEMA)
    return nil
  end
  return redis.error_reply('SCHEMA ' .. at .. ' ' .. seats .. ' ' .. jobs)
end

-- The refusal by schema, if there is one; then the refusal of a new job while the server is full ('FULL', bytes used, limit).
local function check_gate()
  local f = C('MGET', K .. 'schema', K .. 'memory_full')
  return check_schema(f[1]), f[2] and redis.error_reply('FULL ' .. f[2])
end
