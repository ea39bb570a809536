-- Renew a seat and its leases. This heartbeat alone decides whether they are alive. A seat with a free slot, waiting work and no
-- wake-up on its way gets one, so a lost wake-up costs a second at most.
--
-- ARGS
--   seat         name of the seat
--   incarnation  the start of its worker that calls
--   warm         queues whose model the seat has loaded, space separated
--   pass_over    how many ms stages of other queues may be passed over for those of `warm`, if it is not the usual time: 'queue=ms …'
--   recorded     how many stages this incarnation has recorded in all, '' if that is not news
--   stage_ms     how long a stage is expected to take ('queue=ms …'), '' if that is not news or time has no price
--   leases...    the leases that its slots hold
-- RETURNS  {gone} | the leases that are lost
local key = K .. 'seat:' .. seat
local live_incarnation, concurrency, queues, draining, record_ttl, was_warm, rpm, quota_rpm, was_recorded, old_stage_ms,
  old_pass_over = unpack(C('HMGET', key, 'incarnation', 'concurrency', 'queues', 'draining', 'record_ttl', 'warm', 'requests_per_minute',
  'quota_requests_per_minute', 'recorded_stages', 'stage_ms', 'pass_over'))
if live_incarnation ~= incarnation or not C('ZSCORE', K .. 'seats', seat) then return {'gone'} end
C('ZADD', K .. 'seats', NOW + LEASE, seat)
C('PEXPIRE', key, record_ttl)
if warm ~= (was_warm or '') then set_warm(seat, was_warm, warm) end
if pass_over ~= (old_pass_over or '') then C('HSET', key, 'pass_over', pass_over) end
draining = apply_drain(seat, draining, concurrency, queues, record_ttl)
if recorded ~= '' and tonumber(recorded) > tonumber(was_recorded or 0) then
  count_outcomes(seat, recorded - (was_recorded or 0), 0)
  C('HSET', key, 'recorded_stages', recorded)
end
if stage_ms ~= '' then C('HSET', key, 'stage_ms', merge_times(old_stage_ms, stage_ms, queues)) end
local lost = {}
for i = leases_at, #ARGV do
  local lease = ARGV[i]
  if C('ZSCORE', K .. 'leases', lease) then C('ZADD', K .. 'leases', 'XX', NOW + LEASE, lease) else lost[#lost + 1] = lease end
end
local rate = lower_limit(rpm, quota_rpm)
local own = P .. 'seat:' .. seat
if not draining and not (rate and is_rate_used_up(seat, rate)) and C('LLEN', own) == 0
  and C('HLEN', K .. 'slots:' .. seat) < tonumber(concurrency) then
  for q in words(queues) do
    if C('EXISTS', K .. 'classes:' .. q) == 1 then send_wake_up(own, 'seat:' .. seat, 'stage'); break end
  end
end
return lost
