"""An aggregation rule of your own. Change `weigh`, then run the experiment again with --force."""

import numpy as np

from fedsim import Algorithm, Direction, Needs, Stack, stateless


def my_rule(*, q: float = 1.0) -> Algorithm:
    """Average the updates, weighted by the clients' losses to the power of `q`: worse served clients count more."""

    def weigh(stack: Stack) -> Direction:
        # The first `stack.m` of the `stack.n` updates arrived for this step; the others are remembered ones.
        weights = np.zeros(stack.n)
        weights[: stack.m] = stack.losses[: stack.m] ** q

        # The server subtracts this weighted sum of the updates from the model.
        return Direction(weights / weights.sum())

    return stateless(weigh, Needs(losses=True))
