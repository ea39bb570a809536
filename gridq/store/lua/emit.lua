-- Add pieces of a stage's answer to the job's stream, while the attempt is the one that counts.
-- ARGV  lease, path of the stage, piece as JSON …
-- gives 1 | 0 fenced off
-- TTL   str:<job> lives as long as the job, then as long as its result; at most some 10,000 entries
-- uses: base
local lease, path = ARGV[1], ARGV[2]
local job, step, rest = parse(lease)
local j = jobkey(job)
if C('HGET', j, 'cur:' .. step) ~= rest then return 0 end
local key = K .. 'str:' .. job
for i = 3, #ARGV do C('XADD', key, 'MAXLEN', '~', 10000, '*', 'path', path, 'piece', ARGV[i]) end
C('HSET', j, 'em:' .. step, 1)
C('PEXPIRE', key, C('PTTL', j))
return 1
