-- Requests a minute of a seat, counted exactly: claim_times:<seat> has the times of its last claims, the latest first. Both its
-- machine and the quotas file may limit them; the lower limit applies.

local function lower_limit(own, grid)  -- of two numbers or false; nil if there is none
  own, grid = tonumber(own), tonumber(grid)
  return own and grid and math.min(own, grid) or own or grid
end

-- Return whether the seat has made `limit` requests within the last minute. No minute has more, wherever it begins.
local function is_rate_used_up(seat, limit)
  if limit < 1 then return true end
  local age = NOW - tonumber(C('LINDEX', K .. 'claim_times:' .. seat, limit - 1) or -FOREVER)
  return age >= 0 and age < 60000
end

local function count_claim(seat, limit)
  local key = K .. 'claim_times:' .. seat
  C('LPUSH', key, NOW)
  C('LTRIM', key, 0, limit - 1)
  C('PEXPIRE', key, 120000)
end
