"""fedsim beside other tools: trackers of experiments, and Flower. docs/integrations.md shows them."""
