-- Go on with what a job of very many steps has left: of a running job what follows its steps' ends (lib/steps.lua), of one that has ended its
-- steps, which wait or run. A call does a bounded part.
--
-- ARGS
--   job  id of the job
-- RETURNS  1 if there is more to do, else 0
advance(job)
return work_left and 1 or 0
