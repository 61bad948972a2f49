"""The commands, and their terminal output while they run."""
