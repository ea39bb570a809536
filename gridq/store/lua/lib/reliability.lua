-- How reliable a seat is.

-- Count what attempts on a seat came to. Its record's `rel` holds successes and failures, both halved each HALFLIFE ms, and up to
-- which instant that was done.
local function count_outcomes(seat, good, bad)
  local f = C('HMGET', K .. 'seat:' .. seat, 'incarnation', 'reliability')
  if not f[1] then return end  -- its record has expired
  local g, b, at = string.match(f[2] or '0 0 0', '^(%S+) (%S+) (%S+)$')
  local fade = 0.5 ^ (math.max(NOW - at, 0) / HALF_LIFE)
  C('HSET', K .. 'seat:' .. seat, 'reliability', string.format('%.6f %.6f %.0f', g * fade + good, b * fade + bad, NOW))
end
