"""`gridq chaos`: a real grid on this machine, faults from a seed, and an audit of what is left."""
