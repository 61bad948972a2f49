"""Worlds in the formats of other simulators: one format per module, each a function of a Trace."""
