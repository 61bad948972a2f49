"""Fitting the model `fitted` to a trace."""
