"""`fedsim trace`: make, import, change, join, compare and show worlds."""
