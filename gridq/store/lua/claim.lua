-- Claim the best waiting stage that a seat may run: reserve its use, open a lease, count the attempt.
--
-- ARGS
--   seat         name of the seat
--   incarnation  the start of its worker that calls
--   slot         name of the slot
--   nonce        makes the lease unique
-- RETURNS  {lease, spec, meta, refs, input, value …} | {none} | {full} | {gone} | {draining} | {limited} | {again} (lib/claiming.lua)
return claim_stage(seat, incarnation, slot, nonce)
