"""Measures of worlds, and models fitted to them."""
