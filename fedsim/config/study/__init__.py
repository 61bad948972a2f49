"""The configuration of a study, one file per table."""
