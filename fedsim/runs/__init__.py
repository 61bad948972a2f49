"""Simulate, resume, replay, fork, verify, plan."""
