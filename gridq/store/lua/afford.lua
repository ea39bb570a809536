-- Whether a job's money and tokens are within what its agent and team may use now: what an admission looks at, without holding it.
-- ARGV  agent, the team of its key ('-': none), micro-dollars, tokens
-- gives {the team that it counts for ('-': none)} where it is | {that team, 'quota', …} as admit does
-- TTL   nothing is written
local agent, team, micro, tokens = unpack(ARGV)
if C('EXISTS', K .. 'limits') == 0 then return {team} end
team = team_of(agent, team)
return {team, unpack(short_of(binding(agent, team, true), tonumber(micro), tonumber(tokens)) or {})}
