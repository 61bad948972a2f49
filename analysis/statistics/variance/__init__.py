"""Where variance comes from: small test sets, or the seeds of data, world and training."""
