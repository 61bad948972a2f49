"""The weights of clients in the objective, by their training samples."""

from __future__ import annotations

import numpy as np

from fedsim.engine.selector import Clients, Floats, View


def sample_shares(view: View, clients: Clients) -> Floats:
    """Return [c] n_k / Σ n, the sum over all K clients; 1 / K if no client has samples."""
    total = int(view.n_samples.sum())
    if not total:
        return np.full(len(clients), 1 / view.n_clients)
    return np.asarray(view.n_samples[clients] / total)
