"""Commands, and what a terminal shows while they work."""
