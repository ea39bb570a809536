-- The heartbeat that alone decides live or dead: renew the seat and its leases; a free slot with work pending and no wake-up
-- on its way gets one, so a lost wake-up costs a second at most.
-- ARGV  seat, incarnation, queues whose model the seat has loaded (space separated), how many stages this incarnation has recorded
--       in all, '' where that was told before, how many ms a stage of a queue is expected to take ('queue=ms …'; '' where that was told
--       before, or its time has no price), lease …
-- gives {gone} | the leases that are no longer ours
local seat, inc = ARGV[1], ARGV[2]
local f = C('HMGET', K .. 'seat:' .. seat, 'incarnation', 'concurrency', 'queues', 'draining', 'record_ttl', 'warm', 'requests_per_minute', 'quota_requests_per_minute', 'recorded_stages', 'stage_ms')
if f[1] ~= inc or not C('ZSCORE', K .. 'seats', seat) then return {'gone'} end
C('ZADD', K .. 'seats', NOW + LEASE, seat)
C('PEXPIRE', K .. 'seat:' .. seat, f[5])
if ARGV[3] ~= (f[6] or '') then warmed(seat, f[6], ARGV[3]) end
f[4] = obey(seat, f[4], f[2], f[3], f[5])
if ARGV[4] ~= '' and tonumber(ARGV[4]) > tonumber(f[9] or 0) then
  tally(seat, ARGV[4] - (f[9] or 0), 0)
  C('HSET', K .. 'seat:' .. seat, 'recorded_stages', ARGV[4])
end
if ARGV[5] ~= '' then C('HSET', K .. 'seat:' .. seat, 'stage_ms', remembered(f[10], ARGV[5], f[3])) end
local lost = {}
for i = 6, #ARGV do
  local lease = ARGV[i]
  if C('ZSCORE', K .. 'leases', lease) then C('ZADD', K .. 'leases', 'XX', NOW + LEASE, lease) else lost[#lost + 1] = lease end
end
local rate = least(f[7], f[8])
local own = P .. 'seat:' .. seat
if not f[4] and not (rate and spent_rate(seat, rate)) and C('LLEN', own) == 0 and C('HLEN', K .. 'slots:' .. seat) < tonumber(f[2]) then
  for q in words(f[3]) do
    if C('EXISTS', K .. 'classes:' .. q) == 1 then wake_up(own, 'seat:' .. seat, 'stage'); break end
  end
end
return lost
