-- Let a request in by the limits of its API key, for all gateways together.
--
-- ARGS
--   key       id of the API key
--   request   unique name of the request
--   rpm       requests a minute, '' for no limit
--   parallel  requests open at once, '' for no limit
--   slot_ms   how long the request keeps its slot among those open at once
-- RETURNS  {ok} | {rate, ms until one more may come} | {parallel, ms until the first slot lapses}
-- TTL      request_times:<key> lives for a minute, open_requests:<key> as long as the last slot
--
-- A refused request counts for nothing; the same request again is one request.
local times, open = K .. 'request_times:' .. key, K .. 'open_requests:' .. key
if C('ZSCORE', open, request) then return {'ok'} end
if parallel ~= '' then
  C('ZREMRANGEBYSCORE', open, '-inf', NOW)
  if C('ZCARD', open) >= tonumber(parallel) then
    return {'parallel', C('ZRANGE', open, 0, 0, 'WITHSCORES')[2] - NOW}
  end
end
if rpm ~= '' and not C('ZSCORE', times, request) then
  C('ZREMRANGEBYSCORE', times, '-inf', NOW - 60000)
  if C('ZCARD', times) >= tonumber(rpm) then
    return {'rate', C('ZRANGE', times, 0, 0, 'WITHSCORES')[2] + 60001 - NOW}
  end
  C('ZADD', times, NOW, request)
  C('PEXPIRE', times, 61000)
end
if parallel ~= '' then
  C('ZADD', open, NOW + tonumber(slot_ms), request)
  C('PEXPIRE', open, slot_ms)
end
return {'ok'}
