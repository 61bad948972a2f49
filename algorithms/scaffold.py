"""SCAFFOLD: Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML), Alg. 1.

    w <- w - η_g mean_S Δ_k,    c <- c + (1/K) Σ_S (c_k⁺ - c_k)

The server's control variate c goes to clients beside the model, and the client method `scaffold` sends c_k⁺ - c_k
beside the update: both ways carry twice the model.

Choice: a client with several updates in a step (buffered pacing) counts with each of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedsim.algorithms.fedavg import fedavg
from fedsim.server.rule import Algorithm, StepFacts, Vectors, VectorStep

if TYPE_CHECKING:
    import torch


def scaffold(*, server_lr: Annotated[float, Field(gt=0)] = 1.0) -> Algorithm:
    """Average the updates, and keep the mean of all clients' control variates; `server_lr` is η_g.

    Args:
        server_lr: the server's learning rate η_g, which multiplies the mean update.
    """

    def apply(direction: torch.Tensor, vectors: Vectors, facts: StepFacts) -> tuple[torch.Tensor, Vectors]:
        change = facts.received["control"] / facts.n_clients
        control = change + vectors["control"] if vectors else change
        return server_lr * direction, {"control": control}

    mean = fedavg(weighting="uniform")
    return replace(
        mean,
        then=VectorStep(apply),
        sends=("control",),
        receives=("control",),
        client="scaffold",
        promises=frozenset(),
    )
