"""Aggregation rules without the simulator: `combine` is one call on a matrix of updates."""

from fedsim.server.combine.arguments import Given
from fedsim.server.combine.call import Combined, check_stands_alone, combine

__all__ = ["Combined", "Given", "check_stands_alone", "combine"]
