"""Fit the scenario `fitted` to a trace."""
