-- A program of the grid starts: its schema becomes the data's where it may.
-- ARGV  (none)
-- gives 1 | an error SCHEMA, the data's, live seats, jobs that run or wait
-- TTL   upgrade lives for two leases
-- Seats whose lease has lapsed may yet be live: the server was away, and nobody could renew. So they count until a newer program
-- has asked for the time of a lease, again and again without a gap in which they could not have renewed.
local at = C('GET', K .. 'schema')
if at == SCHEMA then return 1 end
local since, last = string.match(C('GET', K .. 'upgrade') or '', '^(%d+) (%d+)$')
if not since or NOW - last > GAP or NOW < tonumber(last) then since = NOW end
C('SET', K .. 'upgrade', since .. ' ' .. NOW, 'PX', 2 * LEASE)
return other_schema(at, NOW - since >= LEASE) or 1
