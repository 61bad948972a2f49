"""Shared parts of selectors: draws, expected durations, groups, hours of the day."""
