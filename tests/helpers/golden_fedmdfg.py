"""Checks of golden vectors for FedMDFG: single directions, and whole rounds with its search for a step size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.algorithms.fedmdfg import angle_deg
from fedsim.algorithms.mathematics.line_search import Trial, accepted, chosen, search_steps
from golden_tools import EXACT, INTERIOR_POINT, Case, assert_close
from rule_calls import combine

Array = NDArray[np.float64]


def check_fedmdfg(case: Case, name: str) -> None:
    if name.startswith("dir"):
        _direction(case)
    else:
        _rounds(case)


def _direction(case: Case) -> None:
    m = len(case["losses"])
    history = case["history_grads"].reshape(-1, case["grads_raw"].shape[1])
    rows = np.vstack([case["grads_raw"], history])
    expected = np.full(len(rows) + 2, np.nan)
    counts = np.zeros(len(expected), dtype=np.int64)
    if case["force_active"]:  # somebody did worse than was expected
        expected[0], counts[0] = case["losses"][0] / 2, 1
    previous = float(np.linalg.norm(history[0])) if len(history) else 0.0
    theta = float(case["theta_deg"])
    unfair = bool(case["force_active"]) or angle_deg(case["losses"]) > theta
    assert unfair == bool(case["fair_active"])
    result = combine(
        "fedmdfg",
        rows,
        losses=[*case["losses"], *[1.0] * len(history)],
        ages=[0] * m + [1] * len(history),
        state={"expected": expected, "counts": counts, "mean_norm": previous},
        n_clients=len(expected),
        theta_deg=theta,
        guard=1e-6,
    )
    assert_close(result.direction, case["direction_hp_rescaled"], EXACT, "direction_hp_rescaled")
    authors = case["direction_authors"]
    unscaled = result.direction * (np.linalg.norm(case["direction_hp"]) / np.linalg.norm(result.direction))
    assert_close(unscaled, authors, INTERIOR_POINT, "direction_authors")


def _rounds(case: Case) -> None:
    losses_at, gradients_at = _quadratics(case)
    w, state = case["w0"], None
    last: dict[int, Array] = {}
    for t, selected in enumerate(case["selected"]):
        clients = selected.tolist()
        before, gradients = losses_at(w, clients), gradients_at(w, clients)
        assert_close(gradients, case["grads_before"][t], EXACT, f"gradients of round {t}")
        absent = [c for c in last if c not in clients]
        result = combine(
            "fedmdfg",
            np.stack([*gradients, *(last[c] for c in absent)]),
            losses=[*before, *[1.0] * len(absent)],
            clients=clients + absent,
            ages=[0] * len(clients) + [1] * len(absent),
            state=state,
            step=t,
            n_clients=len(case["A"]),
            theta_deg=float(case["theta_deg"]),
        )
        what = f"direction of round {t}"
        assert_close(result.direction, case["direction_used"][t], INTERIOR_POINT, what)
        direction = case["direction_used"][t]  # the search from the authors' own direction
        step, n_trials = _search(case, t, w, clients, direction, bool(absent), losses_at)
        assert step == case["step_size_used"][t]
        assert n_trials == case["n_trials"][t]
        w = w - step * direction
        assert_close(w, case["w_after"][t], 1e-9, f"model after round {t}")
        last, state = dict(zip(clients, gradients, strict=True)), result.state


def _search(
    case: Case, t: int, w: Array, clients: list[int], direction: Array, any_absent: bool, losses_at: Any
) -> tuple[float, int]:
    """Search as the authors' code does."""
    before = losses_at(w, clients)
    slopes = case["grads_before"][t] @ direction
    guided, base_lr = bool(case["fair_active"][t]), float(case["base_lr"])
    trials = []
    for step in search_steps(base_lr, int(case["s"]), 2.0, any_absent=any_absent):
        trials.append(Trial(step, losses_at(w - step * direction, clients)))
        if accepted(trials[-1], before, slopes, guided=guided, form="released"):
            return step, len(trials)
    return chosen(trials, before, base_lr, any_absent=any_absent).step, len(trials)


def _quadratics(case: Case) -> tuple[Any, Any]:
    """Return F_i(w) = ½ ‖A_i (w - c_i)‖² / d + b_i and its gradient, for lists of clients."""
    d = case["A"].shape[-1]

    def losses_at(w: Array, clients: list[int]) -> Array:
        apart = np.einsum("iab,ib->ia", case["A"][clients], w - case["c"][clients])
        return np.asarray(0.5 * (apart**2).sum(axis=1) / d + case["b"][clients])

    def gradients_at(w: Array, clients: list[int]) -> Array:
        a = case["A"][clients]
        return np.asarray(np.einsum("iba,ibc,ic->ia", a, a, w - case["c"][clients]) / d)

    return losses_at, gradients_at
