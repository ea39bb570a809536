-- A seat drains (it takes nothing more, so it counts as nobody who could serve) or goes.
-- ARGV  seat, incarnation, 'drain' | 'go' | 'died' (its process ended by itself)
-- TTL   untold lives for a minute
-- gives 1 | 0 where the incarnation is not the live one
local seat, inc, how = unpack(ARGV)
local key = K .. 'seat:' .. seat
local f = C('HMGET', key, 'incarnation', 'queues', 'concurrency', 'draining')
if f[1] ~= inc then return 0 end
if how == 'go' then
  gone(seat, 'the worker stopped')
elseif how == 'died' then
  gone(seat, 'the worker died', true)
elseif C('ZSCORE', K .. 'seats', seat) then
  C('HSET', key, 'draining', 1)
  if not f[4] then
    unlist(seat, f[3], f[2])
    for q in words(f[2]) do
      if C('EXISTS', K .. 'classes:' .. q) == 1 then ring(q) end
    end
  end
end
hand_on()
return 1
