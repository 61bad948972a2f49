"""Parts that several scenarios share: laws of durations, hazards, devices, presence."""
