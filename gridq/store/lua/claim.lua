-- Take the best pending stage that the seat may run: hold, open the lease, raise the attempt.
-- ARGV  seat, incarnation, slot, nonce
-- gives {lease, spec, meta, refs, input, value …} | {none} | {full} | {gone} | {draining} | {limited} | {again}
return take(ARGV[1], ARGV[2], ARGV[3], ARGV[4])
