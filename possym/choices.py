"""What every run may be asked for, whichever its study; read by the workflows too, which have no use for torch."""

COMPUTE = ("stored", "auto", "always")
SEEDS = 2**30  # torch's CPU generator tells no more apart
