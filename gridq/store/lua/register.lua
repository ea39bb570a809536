-- A seat goes live, or says again what it is. A new incarnation ends the leases of the one before at once.
-- ARGV  seat, incarnation, host (which start of which machine), slots, its limits (of each meter thing/window/limit, space separated),
--       queues (space separated), TTL of the seat's record in ms, name of its Celery worker, requests a minute or '', '1' where it
--       takes nothing for now, whom it is lent to alone ('a:<agent>' and 't:<team>', space separated) or '', its owner or '', the
--       model families of what it runs for a queue ('<queue>=<family>,<family> …') or '', the dearest of its prices in micro-dollars
--       a million tokens ('in out') or '', micro-dollars for an hour of a slot and the time-out in ms of a stage that has none
--       ('hour time-out') or ''
-- TTL   untold lives for a minute
-- gives {1} | {0, host} another live worker on another host serves it | an error SCHEMA
local other = other_schema(C('GET', K .. 'schema'))
if other then return other end
local seat, inc, host, concurrency, limits, queues, ttl, worker, rpm, rests, only, owner, families, prices, hourly = unpack(ARGV)
local key = K .. 'seat:' .. seat
local f = C('HMGET', key, 'incarnation', 'host', 'concurrency', 'queues', 'draining')
local alive_to = C('ZSCORE', K .. 'seats', seat)
local live = alive_to and (f[1] == inc or tonumber(alive_to) > NOW)  -- late, yet not swept: it may go on as it is
if live and f[1] ~= inc and f[2] ~= host then return {0, f[2]} end
if f[1] ~= inc or not live then
  gone(seat, 'the seat started anew')
  hand_on()
  enlist(seat, concurrency, queues)
elseif f[5] then
  enlist(seat, concurrency, queues)
elseif f[3] ~= concurrency or f[4] ~= queues then
  unlist(seat, f[3], f[4])
  enlist(seat, concurrency, queues)
end
C('HSET', key, 'incarnation', inc, 'host', host, 'concurrency', concurrency, 'queues', queues, 'record_ttl', ttl, 'worker', worker)
C('HDEL', key, 'draining')
if only ~= '' then
  C('HSET', key, 'lent_to', only)
  C('HSET', K .. 'lent_seats', seat, only)
elseif C('HDEL', key, 'lent_to') == 1 then C('HDEL', K .. 'lent_seats', seat) end
if f[1] ~= inc then C('HDEL', key, 'recorded_stages') end
for field, told in pairs({requests_per_minute = rpm, owner = owner, families = families, prices = prices, hourly_price = hourly}) do
  if told == '' then C('HDEL', key, field) else C('HSET', key, field, told) end
end
set_sheet(seat, 'own', limits)
set_limits(seat)
C('PEXPIRE', key, ttl)
C('ZADD', K .. 'seats', NOW + LEASE, seat)
if rests == '1' then
  C('HSET', key, 'draining', 1)
  unlist(seat, concurrency, queues)
elseif not obey(seat, false, concurrency, queues, ttl) then
  idle(seat, queues)
  for q in words(queues) do if C('EXISTS', K .. 'classes:' .. q) == 1 then ring(q) end end
end
return {1}
