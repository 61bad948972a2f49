"""Shared mathematics of rules: least-norm points, lengths, line searches, weights by row."""
