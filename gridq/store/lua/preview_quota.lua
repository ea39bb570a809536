-- Check whether a job's money and tokens are within the limits of its agent and team: the check of an admission, without reserving.
--
-- ARGS
--   agent          the agent that would submit it
--   team           team of its API key, '-' for none
--   micro_dollars  estimated cost
--   tokens         estimated tokens
-- RETURNS  {the team that the agent counts for, '-' for none} | {that team, 'quota', …} as in admit.lua
-- TTL      nothing is written
if C('EXISTS', K .. 'limits') == 0 then return {team} end
team = team_of(agent, team)
local limits = read_account_limits(agent, team, true)
return {team, unpack(find_quota(limits, tonumber(micro_dollars), tonumber(tokens)) or {})}
