"""Grids of runs."""
