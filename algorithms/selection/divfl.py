"""DivFL: Balakrishnan et al. 2022, "Diverse Client Selection for Federated Learning via Submodular Maximization".

The set S of chosen clients should represent all: it minimises the facility location Σ_k min_{i in S} ‖D_k - D_i‖ over
all clients k, with their last updates D. Greedily the client is added that lowers the sum most. With `share`,
stochastic greedy (Mirzasoleiman et al. 2015) looks for each place at that share of all clients only, at k at least,
drawn at random; the authors' code, with a share of 0.1, has both, and its experiments use the greedy one.

Deviations and choices:
- The paper collects the gradients of all clients first. Here clients that never had a job come first, in random order.
- A client without an update, because its jobs were lost, is as far from all others as the two clients farthest apart.
- S begins with the clients that are working, so that a pacing that fills places one at a time does not choose the same
  representative again and again.
- Clients that are offline are represented too, but cannot be chosen.
- The authors' code (github.com/melodi-lab/divfl) weighs the chosen updates by samples, as FedAvg does. Weights by the
  number of clients that each represents, as in the derivation, would be a rule's; a selector chooses alone.
- `distance = "squared"` takes squared distances, as some other implementations do.

Inclusion probabilities are not stated. Known to the server: inner products of the updates that it keeps.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.selection.parts.draws import others, share_of
from fedsim.engine.selector import Clients, Floats, Ints, Selector, View, stateless


def divfl(
    *,
    share: Annotated[float, Field(gt=0, le=1)] | None = None,
    distance: Literal["euclidean", "squared"] = "euclidean",
) -> Selector:
    """Choose clients whose last updates represent those of all clients.

    Args:
        share: share of all clients, drawn at random, that is looked at for each place (stochastic greedy; 0.1 in the
            authors' code), but at least as many clients as there are places; None: all candidates (greedy).
        distance: distance of two updates: "euclidean" is the paper's, "squared" its square, as some other
            implementations take it.
    """

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        fresh = rng.permutation(view.candidates[view.dispatched[view.candidates] == 0])[:k]
        left = others(view.candidates, fresh)
        if len(fresh) == k or not len(left):
            return fresh
        window = len(left) if share is None else max(k, share_of(view.n_clients, share))
        clients, apart = _distances(view, distance == "squared")
        working = np.flatnonzero(view.busy[clients])
        covered = apart[:, working].min(axis=1, initial=np.inf)
        taken = _greedy(apart, covered, np.searchsorted(clients, left), k - len(fresh), window, rng)
        return np.concatenate([fresh, clients[taken]])

    return stateless(select, needs=frozenset({"updates"}))


def _distances(view: View, squared: bool) -> tuple[Clients, Floats]:
    """Return the clients that have an update or may be chosen, and the distances [g, g] of their updates."""
    known = ~np.isnan(view.update_norms(np.arange(view.n_clients)))
    known[view.candidates] = True
    clients = np.flatnonzero(known)
    products = view.update_products(clients)
    squares = products.diagonal()
    apart = np.maximum(squares[:, None] + squares - 2 * products, 0.0)
    apart = apart if squared else np.sqrt(apart)
    farthest = np.nanmax(apart, initial=0.0) or 1.0
    apart = np.where(np.isnan(apart), farthest, apart)
    np.fill_diagonal(apart, 0.0)
    return clients, apart


def _greedy(
    apart: Floats, covered: Floats, free: Ints, k: int, window: int, rng: np.random.Generator
) -> list[int]:
    """Return the `k` of the columns `free` that lower the sum of `covered`, the distances to S so far, most."""
    taken = list[int]()
    while len(taken) < min(k, len(taken) + len(free)):
        looked = rng.permutation(free)[:window]
        reached = np.minimum(covered[:, None], apart[:, looked])
        best = int(np.argmin(reached.sum(axis=0)))
        taken.append(int(looked[best]))
        covered, free = reached[:, best], others(free, looked[best : best + 1])
    return taken
