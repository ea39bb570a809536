-- Add pieces of stages' answers to the streams of their jobs, each as long as its attempt counts.
--
-- ARGS
--   streams...  for each attempt six or more: its lease, path, before, dropped, count, and as many pieces
--
--   lease       the attempt's lease
--   path        path of the stage in the graph
--   before      how many pieces this attempt has written before
--   dropped     the parts of the stage's input that have no effect on the seat, as JSON, or ''; stands beside the first piece
--   count       how many pieces follow, each as JSON
-- RETURNS  for each attempt 1 | 0 it no longer counts
-- TTL      stream:<job> lives as long as the job, then as long as its result; at most about 10,000 entries
--
-- A repeated call adds nothing twice. An attempt whose lease has lapsed adds nothing: the stage is waiting again, and the next
-- attempt begins the answer.
local function add_pieces(lease, path, before, dropped, first, last)
  local job, step, fence = parse_lease(lease)
  local j = job_key(job)
  local current, written = unpack(C('HMGET', j, 'lease:' .. step, 'pieces:' .. step))
  if current ~= fence or not C('ZSCORE', K .. 'leases', lease) then return 0 end
  local stream = K .. 'stream:' .. job
  written = tonumber(written or 0)
  for i = first + math.max(written - before, 0), last do
    if dropped ~= '' and before == 0 and i == first then
      C('XADD', stream, 'MAXLEN', '~', 10000, '*', 'path', path, 'piece', ARGV[i], 'dropped', dropped)
    else C('XADD', stream, 'MAXLEN', '~', 10000, '*', 'path', path, 'piece', ARGV[i]) end
  end
  C('HSET', j, 'pieces:' .. step, math.max(written, before + last - first + 1))
  if written == 0 then C('PEXPIRE', stream, C('PTTL', j)) end
  return 1
end

local replies, at = {}, streams_at
while at <= #ARGV do
  local lease, path, before, dropped, count = unpack(ARGV, at, at + 4)
  replies[#replies + 1] = add_pieces(lease, path, tonumber(before), dropped, at + 5, at + 4 + count)
  at = at + 5 + count
end
return replies
