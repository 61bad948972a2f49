"""A task divided among clients."""
