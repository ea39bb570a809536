-- A seat goes live, or says again what it is. A new incarnation ends the leases of the one before at once.
-- ARGV  seat, incarnation, host (which start of which machine), lanes, budget in micro-dollars or '', queues (space separated),
--       TTL of the seat's record in ms, name of its Celery worker, what the budget is for (month, week,
--       day), requests a minute or '', '1' where it takes nothing for now, whom it is lent to alone
--       ('a:<agent>' and 't:<team>', space separated) or ''
-- TTL   untold lives for a minute
-- gives {1} | {0, host} another live worker on another host serves it | an error SCHEMA
local other = other_schema(C('GET', K .. 'schema'))
if other then return other end
local seat, inc, host, lanes, budget, queues = unpack(ARGV, 1, 6)
local key = K .. 'seat:' .. seat
local f = C('HMGET', key, 'inc', 'host', 'lanes', 'queues', 'draining')
local alive_to = C('ZSCORE', K .. 'seats', seat)
local live = alive_to and (f[1] == inc or tonumber(alive_to) > NOW)  -- late, yet not swept: it may go on as it is
if live and f[1] ~= inc and f[2] ~= host then return {0, f[2]} end
if f[1] ~= inc or not live then
  gone(seat, 'the seat started anew')
  hand_on()
  enlist(seat, lanes, queues)
elseif f[5] then
  enlist(seat, lanes, queues)
elseif f[3] ~= lanes or f[4] ~= queues then
  unlist(seat, f[3], f[4])
  enlist(seat, lanes, queues)
end
C('HSET', key, 'inc', inc, 'host', host, 'lanes', lanes, 'queues', queues, 'ttl', ARGV[7], 'worker', ARGV[8])
C('HDEL', key, 'draining')
if ARGV[12] and ARGV[12] ~= '' then
  C('HSET', key, 'only', ARGV[12])
  C('HSET', K .. 'lends', seat, ARGV[12])
elseif C('HDEL', key, 'only') == 1 then C('HDEL', K .. 'lends', seat) end
if f[1] ~= inc then C('HDEL', key, 'oks') end
-- No budget and a budget of nothing differ.
set_budget(seat, '', budget == '' and '-' or budget, ARGV[9])
if ARGV[10] == '' then C('HDEL', key, 'rpm') else C('HSET', key, 'rpm', ARGV[10]) end
set_limits(seat)
turned(seat)
C('PEXPIRE', key, ARGV[7])
C('ZADD', K .. 'seats', NOW + LEASE, seat)
if ARGV[11] == '1' then
  C('HSET', key, 'draining', 1)
  unlist(seat, lanes, queues)
elseif not obey(seat, false, lanes, queues, ARGV[7]) then
  idle(seat, queues)
  for q in words(queues) do if C('EXISTS', K .. 'cls:' .. q) == 1 then ring(q) end end
end
return {1}
