"""What is measured on runs: fairness, participation, waste, paired differences and their intervals."""
