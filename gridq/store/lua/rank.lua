-- Rank the seats of a queue: those that are idle now, and others when they become idle. A new seat gets the last rank.
--
-- ARGS
--   queue     name of the queue
--   ttl_ms    how long the ranks hold
--   ranks...  seat, rank (0 is the best), …
-- RETURNS  1
-- TTL      rank:<queue> lives for ttl_ms
local idle, rank, last = K .. 'idle:' .. queue, K .. 'rank:' .. queue, 0
C('DEL', rank)
for i = ranks_at, #ARGV, 2 do
  local seat, place = ARGV[i], ARGV[i + 1]
  last = math.max(last, tonumber(place))
  C('ZADD', rank, place, seat)
  local score = tonumber(C('ZSCORE', idle, seat) or nil)
  if score then C('ZADD', idle, place * 1e13 + score % 1e13, seat) end
end
C('ZADD', rank, last, '*')
C('PEXPIRE', rank, ttl_ms)
return 1
