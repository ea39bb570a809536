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
for first = ranks_at, #ARGV, 1000 do
  local seats, ranks, woken = {}, {}, {}
  for i = first, math.min(first + 998, #ARGV), 2 do
    last = math.max(last, tonumber(ARGV[i + 1]))
    seats[#seats + 1], ranks[#ranks + 1], ranks[#ranks + 2] = ARGV[i], ARGV[i + 1], ARGV[i]
  end
  C('ZADD', rank, unpack(ranks))
  for i, score in ipairs(C('ZMSCORE', idle, unpack(seats))) do
    if score then woken[#woken + 1], woken[#woken + 2] = ranks[2 * i - 1] * 1e13 + tonumber(score) % 1e13, seats[i] end
  end
  if woken[1] then C('ZADD', idle, unpack(woken)) end
end
C('ZADD', rank, last, '*')
C('PEXPIRE', rank, ttl_ms)
return 1
