"""Measures of runs: fairness, participation, waste, paired differences and their intervals."""
