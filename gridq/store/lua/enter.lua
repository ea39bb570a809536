-- Let a request in by its key's own limits, for all gateways together.
-- ARGV  key's id, request (unique), requests a minute ('' = any number), open at once ('' = any number), ms for which its place is
--       held from now
-- gives {'ok'} | {'rate', ms until one more may come} | {'parallel', ms until the first place lapses}. Who is refused counts for
--       nothing; the same request again is one request.
-- TTL   calls:<key> a minute after the last; opened:<key> as the last place
local key, request, rpm, parallel, hold = unpack(ARGV)
local calls, opened, until_ms = K .. 'request_times:' .. key, K .. 'open_requests:' .. key, NOW + tonumber(hold)
if C('ZSCORE', opened, request) then return {'ok'} end
if parallel ~= '' then
  C('ZREMRANGEBYSCORE', opened, '-inf', NOW)
  if C('ZCARD', opened) >= tonumber(parallel) then
    return {'parallel', C('ZRANGE', opened, 0, 0, 'WITHSCORES')[2] - NOW}
  end
end
if rpm ~= '' and not C('ZSCORE', calls, request) then
  C('ZREMRANGEBYSCORE', calls, '-inf', NOW - 60000)
  if C('ZCARD', calls) >= tonumber(rpm) then
    return {'rate', C('ZRANGE', calls, 0, 0, 'WITHSCORES')[2] + 60001 - NOW}
  end
  C('ZADD', calls, NOW, request)
  C('PEXPIRE', calls, 61000)
end
if parallel ~= '' then
  C('ZADD', opened, until_ms, request)
  C('PEXPIRE', opened, hold)
end
return {'ok'}
