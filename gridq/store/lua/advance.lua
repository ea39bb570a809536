-- Go on with what a job of very many steps has left: of a running job what follows its steps' ends (lib/steps.lua), of one that has ended its
-- steps, which wait or run. Then with what is left of a change of limits (lib/parked_agents.lua). A call does a bounded part.
--
-- ARGS
--   job  id of the job, '' for none
-- RETURNS  1 if there is more to do, else 0
if job ~= '' then advance(job) end
if not work_left and not advance_limits() then work_left = true end
return work_left and 1 or 0
