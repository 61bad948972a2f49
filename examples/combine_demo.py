"""Aggregation rules without the simulator: four clients, one of them at odds with the rest, one absent.

    python examples/combine_demo.py

Each line is one rule's step: its length, the smallest cosine between the step and an update that is present (below
zero: that client gets worse, to first order), and the same for the absent client.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsim.server.combine import combine

BLOCKS = [300, 100]  # sizes of two layers

RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "FedAvg": ("fedavg", {}),
    "q-FedAvg, q = 1": ("qfedavg", {"q": 1.0, "lr": 10.0}),
    "FedMGDA+": ("fedmgda_plus", {"epsilon": 1.0}),
    "FedFV": ("fedfv", {"alpha": 0.0, "tau": 1}),
    "FedLF": ("fedlf", {}),
    "FedMGDA, layer by layer": ("fedmgda", {}),
    "FedAvg, projected off absent clients": ("fedavg", {}),
}
WRAPPERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "FedMGDA, layer by layer": [("layerwise", {})],
    "FedAvg, projected off absent clients": [("external", {"tau": 1})],
}


def updates() -> np.ndarray[Any, Any]:
    """Return five updates `[5, 400]`: the third disagrees with the first two, the last is from an absent client."""
    draw = np.random.default_rng(7)
    common = draw.normal(size=400)
    signs = np.array([1.0, 1.0, -0.6, 0.3, -0.4])
    return np.asarray(signs[:, None] * common + draw.normal(size=(5, 400)))


def smallest_cosine(rows: np.ndarray[Any, Any], step: np.ndarray[Any, Any]) -> float:
    """Return the smallest cosine between the step and the rows."""
    return float((rows @ step / np.linalg.norm(rows, axis=1)).min() / np.linalg.norm(step))


def main() -> None:
    """Print one line for each rule."""
    rows = updates()
    reports: dict[str, Any] = {
        "losses": [0.3, 0.4, 2.0, 0.9, 1.5],
        "n_samples": [500, 400, 80, 100, 90],
        "ages": [0, 0, 0, 0, 1],
    }
    print(f"{'rule':38}{'length':>8}{'present':>10}{'absent':>9}")
    for title, (rule, options) in RULES.items():
        wrap = WRAPPERS.get(title, [])
        result = combine(rule, rows, options=options, wrap=wrap, blocks=BLOCKS, n_seen=9, step=3, **reports)
        length = np.linalg.norm(result.direction)
        present, absent = (smallest_cosine(part, result.direction) for part in (rows[:4], rows[4:]))
        print(f"{title:38}{length:8.2f}{present:10.3f}{absent:9.3f}")


if __name__ == "__main__":
    main()
