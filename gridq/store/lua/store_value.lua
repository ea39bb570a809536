-- Write a long output on a server whose memory is used up, where a plain SET is refused: its stage can end.
--
-- ARGS
--   name    name of the value
--   value   the value as JSON
--   ttl_ms  how long it lives
-- RETURNS  1
-- TTL      value:<name> lives for ttl_ms
C('SET', K .. 'value:' .. name, value, 'PX', ttl_ms)
return 1
