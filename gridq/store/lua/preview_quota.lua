-- Check whether a job's money, tokens and GPU seconds are within the limits of its agent and team, as an admission does, without
-- reserving.
--
-- ARGS
--   agent          the agent that would submit it
--   team           team of its API key, '-' for none
--   micro_dollars  estimated cost
--   tokens         estimated tokens
--   gpu_ms         ms for which its stages declare to use a device
-- RETURNS  {the team that the agent counts for, '-' for none} | {that team, 'quota', …} as in admit.lua
-- TTL      nothing is written
if C('EXISTS', K .. 'limits') == 0 then return {team} end
team = team_of(agent, team)
local limits = read_account_limits(agent, team, true)
return {team, unpack(find_quota(limits, {money = tonumber(micro_dollars), tokens = tonumber(tokens), gpu_seconds = tonumber(gpu_ms)})
  or {})}
