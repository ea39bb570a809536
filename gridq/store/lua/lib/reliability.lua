-- How reliable a seat is.

-- Count the outcomes of attempts on a seat. The field `reliability` holds successes and failures, both halved every HALF_LIFE ms,
-- and the time of that decay.
local function count_outcomes(seat, good, bad)
  local incarnation, reliability = unpack(C('HMGET', K .. 'seat:' .. seat, 'incarnation', 'reliability'))
  if not incarnation then return end  -- its record has expired
  local g, b, at = string.match(reliability or '0 0 0', '^(%S+) (%S+) (%S+)$')
  local fade = 0.5 ^ (math.max(NOW - at, 0) / HALF_LIFE)
  C('HSET', K .. 'seat:' .. seat, 'reliability', string.format('%.6f %.6f %.0f', g * fade + good, b * fade + bad, NOW))
end
