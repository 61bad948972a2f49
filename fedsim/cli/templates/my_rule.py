"""An aggregation rule of your own. Change `weigh`, then run the experiment again with --force."""

import numpy as np

from fedsim import Algorithm, Direction, Needs, Stack, stateless


def my_rule(*, q: float = 1.0) -> Algorithm:
    """Average the updates, weighted by the clients' losses to the power of `q`: worse served clients count more."""

    def weigh(stack: Stack) -> Direction:
        weights = np.zeros(stack.n)  # one for each update; those behind the first m are remembered ones
        weights[: stack.m] = (
            stack.losses[: stack.m] ** q
        )  # m updates arrived for this step, each with its loss
        return Direction(
            weights / weights.sum()
        )  # the server subtracts the weighted sum of updates from the model

    return stateless(weigh, Needs(losses=True))
