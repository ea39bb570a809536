-- A seat drains (takes nothing more) or goes.
-- ARGV  seat, incarnation, 'drain' | 'go'
-- gives 1 | 0 where the incarnation is not the live one
-- uses: base pending jobs seats
local seat, inc, how = unpack(ARGV)
local key = K .. 'seat:' .. seat
local f = C('HMGET', key, 'inc', 'queues')
if f[1] ~= inc then return 0 end
if how == 'go' then
  gone(seat, 'the worker stopped')
else
  C('HSET', key, 'draining', 1)
  for q in words(f[2]) do
    C('ZREM', K .. 'idle:' .. q, seat)
    if C('EXISTS', K .. 'cls:' .. q) == 1 then ring(q) end
  end
end
return 1
