-- Add pieces of a stage's answer to the job's stream, while the attempt is the one that counts.
-- ARGV  lease, path of the stage, how many pieces this attempt has written before, piece as JSON …
-- A repeated call adds nothing twice. An attempt whose lease has lapsed adds nothing: the stage is pending again, and who claims
-- it begins the answer.
-- gives 1 | 0 fenced off
-- TTL   str:<job> lives as long as the job, then as long as its result; at most some 10,000 entries
local lease, path = ARGV[1], ARGV[2]
local job, step, rest = parse(lease)
local j = jobkey(job)
if C('HGET', j, 'lease:' .. step) ~= rest or not C('ZSCORE', K .. 'leases', lease) then return 0 end
local key = K .. 'stream:' .. job
local had = tonumber(C('HGET', j, 'pieces:' .. step) or 0)
local before = tonumber(ARGV[3])
for i = 4 + math.max(had - before, 0), #ARGV do C('XADD', key, 'MAXLEN', '~', 10000, '*', 'path', path, 'piece', ARGV[i]) end
C('HSET', j, 'pieces:' .. step, math.max(had, before + #ARGV - 3))
C('PEXPIRE', key, C('PTTL', j))
return 1
