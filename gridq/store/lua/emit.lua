-- Add pieces of a stage's answer to the job's stream, as long as the attempt counts.
--
-- ARGS
--   lease      the attempt's lease
--   path       path of the stage in the graph
--   before     how many pieces this attempt has written before
--   dropped    the parts of the stage's input that have no effect on the seat, as JSON, or ''; stands beside the first piece
--   pieces...  pieces as JSON
-- RETURNS  1 | 0 the attempt no longer counts
-- TTL      stream:<job> lives as long as the job, then as long as its result; at most about 10,000 entries
--
-- A repeated call adds nothing twice. An attempt whose lease has lapsed adds nothing: the stage is waiting again, and the next
-- attempt begins the answer.
local job, step, fence = parse_lease(lease)
local j = job_key(job)
if C('HGET', j, 'lease:' .. step) ~= fence or not C('ZSCORE', K .. 'leases', lease) then return 0 end
local stream = K .. 'stream:' .. job
local written = tonumber(C('HGET', j, 'pieces:' .. step) or 0)
before = tonumber(before)
for i = pieces_at + math.max(written - before, 0), #ARGV do
  if dropped ~= '' and before + i == pieces_at then
    C('XADD', stream, 'MAXLEN', '~', 10000, '*', 'path', path, 'piece', ARGV[i], 'dropped', dropped)
  else C('XADD', stream, 'MAXLEN', '~', 10000, '*', 'path', path, 'piece', ARGV[i]) end
end
C('HSET', j, 'pieces:' .. step, math.max(written, before + #ARGV - pieces_at + 1))
if written == 0 then C('PEXPIRE', stream, C('PTTL', j)) end
return 1
