"""Local SGD, the client's part of FedAvg (McMahan et al., 2017)."""

from __future__ import annotations

from fedsim.training.client_method import ClientMethod


def plain() -> ClientMethod:
    """Minibatch SGD from the received model, as `[train]` says."""
    return ClientMethod()
