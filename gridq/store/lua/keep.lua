-- Write a long output where the server's memory is used up and it refuses a plain SET: the stage that made it ends so.
-- ARGV  name of the value, value, its life in ms
-- gives 1
-- TTL   val:<name> lives as it is told
C('SET', K .. 'value:' .. ARGV[1], ARGV[2], 'PX', ARGV[3])
return 1
