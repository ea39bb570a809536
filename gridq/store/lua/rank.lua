-- Rank the seats of a queue: those that are idle now, and each that becomes so; one that is new goes with the last of them.
-- ARGV  queue, TTL in ms, seat, rank (0 the best), …
-- gives 1
-- TTL   rank:<queue> lives as told
local set, ranks, last = K .. 'idle:' .. ARGV[1], K .. 'rank:' .. ARGV[1], 0
C('DEL', ranks)
for i = 3, #ARGV, 2 do
  last = math.max(last, tonumber(ARGV[i + 1]))
  C('ZADD', ranks, ARGV[i + 1], ARGV[i])
  local score = tonumber(C('ZSCORE', set, ARGV[i]) or nil)
  if score then C('ZADD', set, ARGV[i + 1] * 1e13 + score % 1e13, ARGV[i]) end
end
C('ZADD', ranks, last, '*')
C('PEXPIRE', ranks, ARGV[2])
return 1
