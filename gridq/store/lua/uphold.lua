-- A router has the quotas file whose limits are in force: note that one still does. Where others are in force nothing is noted.
-- ARGV  the file's digest, where it is
-- gives the digest of the limits in force, '' where there are none
-- TTL   limits lives until it is lifted
local f = C('HMGET', K .. 'limits', 'digest', 'seen_at')
if f[1] == ARGV[1] and NOW - (tonumber(f[2]) or 0) >= 5000 then C('HSET', K .. 'limits', 'seen_at', NOW, 'holder', ARGV[2]) end
return f[1] or ''
