"""The configuration of a study: its tables, axes and seeds."""
