-- Note that a router has the quotas file whose limits are in force. If others are in force, nothing is noted.
--
-- ARGS
--   digest  digest of the quotas file
--   holder  where that file is
-- RETURNS  the digest of the limits in force, '' if there are none
-- TTL      limits lives until it is lifted
local in_force, seen_at = unpack(C('HMGET', K .. 'limits', 'digest', 'seen_at'))
if in_force == digest and NOW - (tonumber(seen_at) or 0) >= 5000 then
  C('HSET', K .. 'limits', 'seen_at', NOW, 'holder', holder)
end
return in_force or ''
