"""FedDyn: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization" (ICLR), Algorithm 1.

    h <- h + (1/K) Σ_S Δ_k,    w <- w - (mean_S Δ_k + h)

with the new h, which is -1/K times the sum of what the clients keep. Its other half is the client method `feddyn`.

Choices: h forgets nothing, so clients that leave for good leave their part in it, as in the paper. A client with
several updates in a step (buffered pacing) counts with each of them. What would part h from the clients' vectors is
refused: wrappers, clipping, and updates that are measured from the current model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedsim.algorithms.fedavg import fedavg
from fedsim.server.rule import Algorithm, StepFacts, Vectors, VectorStep

if TYPE_CHECKING:
    import torch


def feddyn() -> Algorithm:
    """Average the updates, and add the mean of what all clients have moved so far."""

    def apply(direction: torch.Tensor, vectors: Vectors, facts: StepFacts) -> tuple[torch.Tensor, Vectors]:
        share = facts.m / facts.n_clients * direction
        moved = share + vectors["moved"] if vectors else share
        return direction + moved, {"moved": moved}

    mean = fedavg(weighting="uniform")
    return replace(mean, then=VectorStep(apply), client="feddyn", as_sent=True, promises=frozenset())
