"""Differences between levels of a study, taken seed by seed, their tests and their power."""
