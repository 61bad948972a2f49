"""Forks a run: it repeats its parent up to an instant, then continues with another rule, selector, pacing or world."""

from fedsim.runs.fork.at import At
from fedsim.runs.fork.branch import fork

__all__ = ["At", "fork"]
