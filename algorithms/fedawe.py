"""FedAWE: Xiang et al. 2024, "Efficient Federated Learning against Heterogeneous and Non-stationary Client
Unavailability" (NeurIPS), Algorithm 1.

Client k trains from x_k, the model that it received last, at step t_k (-1 before the first), and D_k is its update:

    x_k† = x_k - η_g (t - t_k) D_k,    x <- mean_S x_k†,    then x_k <- x and t_k <- t for k in S.

The factor t - t_k echoes the updates that an absent client did not send, and clients that return with old models let
these mix, without memory for updates: each client counts alike in the long run, however unequal the participation. As a
step of the current model w,

    w <- w - (mean_S (w - x_k) + η_g mean_S (t - t_k) D_k).

Deviations and choices:
- `clip` shortens the mean of the echoed updates to this norm; the authors' code has 0.5, the paper none. Their code
  divides η by √(t/10 + 1), where `train.lr_decay` decays it geometrically.
- The download of a job stands for that of the client's model after the step before: a job moves the same bytes, and
  waits for its download first.
- A client whose update was not finite receives the model too, but the factor counts from its last update that was used.
- A client with several updates in a step (buffered pacing) takes part once, with their mean. Its jobs start from what
  it had received when they were dispatched.
- The global model is evaluated, not the mean of the x_k, which the authors' code shows beside it.
- `start = "current"` trains from the current model and echoes alone, which takes no memory for models. That is not
  FedAWE: without the mixing, unequal participation still biases the rule.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.geometry import norm
from fedsim.algorithms.mathematics.rows import grown, over_present, room
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Stack, StartFrom, State


def fedawe(
    *,
    server_lr: Annotated[float, Field(gt=0)] = 1.0,
    clip: Annotated[float, Field(gt=0)] | None = None,
    start: StartFrom = "last",
) -> Algorithm:
    """Average the models that clients trained from the last they received, with updates times the steps of absence.

    Args:
        server_lr: η_g, the factor on the mean of the echoed updates.
        clip: the largest norm of this mean, before the factor η_g; a longer one is shortened to it. Without it, the
            mean keeps its length, as in the paper; the authors' code has 0.5.
        start: the model that a client trains from: "last", the one that it received last; "current", the server's
            current model, which takes no memory for models, but is not FedAWE: unequal participation then biases the
            rule.
    """

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        shares, absences, after = _absences(stack, state)
        echoed = over_present(stack, shares * absences)
        length = 0.0 if clip is None else norm(echoed[None], stack.grams)
        shortened = 1.0 if clip is None or length <= clip else clip / length
        gaps = shares if start == "last" else None
        return Direction(server_lr * shortened * echoed, gaps=gaps), after

    needs = Needs(gram="none" if clip is None else "model")
    return Algorithm(weigh, needs, init=_never_used, start=start)


def _never_used() -> State:
    return {"last": np.zeros(0, dtype=np.int64)}


def _absences(stack: Stack, state: State) -> tuple[Floats, Floats, State]:
    """Return present rows' shares [m] of the mean over clients, the steps [m] since their last use, the next state."""
    _, of_row, rows = np.unique(stack.clients[: stack.m], return_inverse=True, return_counts=True)
    last, clients = grown(state["last"], room(stack), stack.first_step - 1), stack.clients[: stack.m]
    absences = (stack.step - last[clients]).astype(np.float64)
    last[clients] = stack.step
    return 1 / (len(rows) * rows[of_row]), absences, {"last": last}
