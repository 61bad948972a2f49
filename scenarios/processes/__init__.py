"""What several scenarios are made of: laws of durations, hazards, devices, presence."""
