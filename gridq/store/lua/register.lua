-- Make a seat live, or update what it says about itself. A new incarnation ends the leases of the one before at once.
--
-- ARGS
--   seat                 name of the seat
--   incarnation          this start of its worker
--   host                 the machine and its boot that the worker runs on
--   concurrency          number of its slots
--   limits               meters of its own budget, resource/window/limit, space separated
--   queues               queues that it serves, space separated
--   record_ttl_ms        how long its record lives after the last renewal
--   worker               name of its Celery worker
--   requests_per_minute  limit, or ''
--   draining             '1' if it takes nothing for now
--   unavailable          why it or some of its models take nothing, as set_unavailable reads it (lib/unavailable_seats.lua), or ''
--   lent_to              the only ones that may use it (a:<agent> and t:<team>, space separated), or '' for everybody
--   owner                its owner, or ''
--   families             model families by queue ('<queue>=<family>,<family> …'), or ''
--   prices               the dearest of its prices in micro-dollars a million tokens ('in out'), or ''
--   hourly_price         'micro-dollars an hour of a slot, timeout in ms of a stage that has none', or ''
--   keeps_prompts        '1' if it keeps prompts, so that one it has seen takes less time
-- RETURNS  {1} | {0, host} another live worker on another host serves it | an error SCHEMA
-- TTL      seat:<seat> lives for record_ttl_ms, unreported_losses for a minute
local schema_error = check_schema(C('GET', K .. 'schema'))
if schema_error then return schema_error end
local key = K .. 'seat:' .. seat
local old_incarnation, old_host, old_concurrency, old_queues, was_draining = unpack(C('HMGET', key,
  'incarnation', 'host', 'concurrency', 'queues', 'draining'))
local lapses_at = C('ZSCORE', K .. 'seats', seat)
-- A seat that is late, but not yet swept, goes on as it is.
local live = lapses_at and (old_incarnation == incarnation or tonumber(lapses_at) > NOW)
if live and old_incarnation ~= incarnation and old_host ~= host then return {0, old_host} end
if old_incarnation ~= incarnation or not live then
  remove_seat(seat, 'the seat started anew')
  keep_losses()
  list_seat(seat, concurrency, queues)
elseif was_draining then
  list_seat(seat, concurrency, queues)
elseif old_concurrency ~= concurrency or old_queues ~= queues then
  unlist_seat(seat, old_concurrency, old_queues)
  list_seat(seat, concurrency, queues)
end
C('HSET', key, 'incarnation', incarnation, 'host', host, 'concurrency', concurrency, 'queues', queues, 'record_ttl', record_ttl_ms,
  'worker', worker)
C('HDEL', key, 'draining')
if lent_to ~= '' then
  C('HSET', key, 'lent_to', lent_to)
  C('HSET', K .. 'lent_seats', seat, lent_to)
elseif C('HDEL', key, 'lent_to') == 1 then C('HDEL', K .. 'lent_seats', seat) end
if old_incarnation ~= incarnation then C('HDEL', key, 'recorded_stages') end
for field, text in pairs({requests_per_minute = requests_per_minute, owner = owner, families = families, prices = prices,
  hourly_price = hourly_price, keeps_prompts = keeps_prompts}) do
  if text == '' then C('HDEL', key, field) else C('HSET', key, field, text) end
end
set_budget(seat, 'own', limits)
set_seat_limits(seat)
C('PEXPIRE', key, record_ttl_ms)
set_unavailable(seat, unavailable)
C('ZADD', K .. 'seats', NOW + LEASE, seat)
C('ZREM', K .. 'gone_seats', seat)
if draining == '1' then
  C('HSET', key, 'draining', 1)
  unlist_seat(seat, concurrency, queues)
elseif not apply_drain(seat, false, concurrency, queues, record_ttl_ms) then
  mark_idle(seat, queues)
  wake_queues(queues)
end
return {1}
