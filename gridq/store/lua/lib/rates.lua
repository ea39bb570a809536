-- Requests a minute of a seat, exactly: by the times of its last claims, the latest first, in rate:<seat>. Its machine says how many
-- (rpm), the quotas file says so too (grpm), and the smaller binds.

local function lower_limit(own, grid)  -- of two numbers or false; nil where neither is
  own, grid = tonumber(own), tonumber(grid)
  return own and grid and math.min(own, grid) or own or grid
end

-- Whether the seat has made its `most` requests within the last minute: never more than that in any minute, wherever it begins.
local function is_rate_used_up(seat, most)
  if most < 1 then return true end
  local age = NOW - tonumber(C('LINDEX', K .. 'claim_times:' .. seat, most - 1) or -FOREVER)
  return age >= 0 and age < 60000
end

local function count_claim(seat, most)
  local key = K .. 'claim_times:' .. seat
  C('LPUSH', key, NOW)
  C('LTRIM', key, 0, most - 1)
  C('PEXPIRE', key, 120000)
end
