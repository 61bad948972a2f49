"""A benchmark for FLGo: the work that the environment variable WORK names, as FLGo wants it."""
