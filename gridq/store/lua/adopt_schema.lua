-- Start a program of the grid: the data take its schema if they may.
--
-- RETURNS  1 | an error SCHEMA with the data's schema, the live seats and the jobs that run or wait
-- TTL      upgrade lives for two leases
--
-- A seat whose lease has lapsed may still be alive: the server was away, and nobody could renew. So lapsed seats count as live until
-- a newer program has asked for the duration of a lease, without a gap in which they could not have renewed.
local schema = C('GET', K .. 'schema')
if schema == SCHEMA then return 1 end
local since, last = string.match(C('GET', K .. 'upgrade') or '', '^(%d+) (%d+)$')
if not since or NOW - last > GAP or NOW < tonumber(last) then since = NOW end
C('SET', K .. 'upgrade', since .. ' ' .. NOW, 'PX', 2 * LEASE)
return check_schema(schema, NOW - since >= LEASE) or 1
