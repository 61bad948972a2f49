"""What several selectors compute: draws, expected durations, groups, hours of the day."""
