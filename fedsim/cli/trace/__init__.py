"""`fedsim trace`: make, import, fit, join, edit, show and compare worlds."""
