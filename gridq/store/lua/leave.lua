-- Take a seat out of service: it drains (takes nothing more), or is no longer live.
--
-- ARGS
--   seat         name of the seat
--   incarnation  the start of its worker that calls
--   how          drain | go | died (its process ended by itself)
--   unavailable  why a seat that drains takes nothing, as set_unavailable reads it (lib/unavailable_seats.lua); '' if its worker is stopping
-- RETURNS  1 | 0 this incarnation is not the live one | 2 the next sweeps lose the rest of its leases
-- TTL      unreported_losses lives for a minute
local key = K .. 'seat:' .. seat
local live_incarnation, queues, concurrency, draining = unpack(C('HMGET', key, 'incarnation', 'queues', 'concurrency', 'draining'))
if live_incarnation ~= incarnation then return 0 end
if how == 'go' then
  remove_seat(seat, 'the worker stopped')
elseif how == 'died' then
  remove_seat(seat, 'the worker died', true)
elseif C('ZSCORE', K .. 'seats', seat) then
  C('HSET', key, 'draining', 1)
  if unavailable == '' then note_drain(seat, queues, true) else set_unavailable(seat, unavailable) end
  if not draining then
    unlist_seat(seat, concurrency, queues)
    wake_queues(queues)
  end
end
keep_losses()
return work_left and 2 or 1
