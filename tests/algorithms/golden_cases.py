"""One check per kind of golden vector: recompute with our rule what the authors' code or the formulas gave.

A kind is a folder of `.npz` files; any folder of files with the same arrays will do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from golden_fedmdfg import check_fedmdfg
from golden_tools import EXACT, INTERIOR_POINT, POLISHED, Case, assert_close
from golden_weights import (
    check_afl,
    check_drfl,
    check_fedfa,
    check_fedgini,
    check_fedmgda_plus,
    check_qfedavg,
    check_term,
)
from numpy.typing import NDArray

from fedsim.combine import combine
from fedsim.plugins import build


def golden_folder() -> Path:
    """Return the folder of golden vectors, which need not exist."""
    default = Path(__file__).parents[3] / "shared" / "golden"
    return Path(os.environ.get("FEDSIM_GOLDEN", default))


def golden_files() -> Iterator[Path]:
    """Yield all files, kind by kind."""
    yield from sorted(golden_folder().glob("*/*.npz"))


ZERO = 1e-8
"""Relative norm below which the vectors' merging takes a block for zero."""


@dataclass
class History:
    """The last row of each client, with its round; rounds are steps from 0."""

    rows: dict[int, NDArray[Any]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    round: dict[int, int] = field(default_factory=dict)

    def combine(self, case: Case, t: int, rule: str, **options: Any) -> Any:
        """Combine round t's rows and the remembered rows of clients absent from it, then remember round t."""
        present = [int(c) for c in case["selected"][t]]
        absent = [c for c in self.rows if c not in present]
        n_seen = len(self.rows)
        for client, row, loss in zip(present, case["grads"][t], case["losses"][t], strict=True):
            self.rows[client], self.losses[client], self.round[client] = row, float(loss), t
        clients = present + absent
        return combine(
            rule,
            np.stack([self.rows[c] for c in clients]),
            losses=[self.losses[c] for c in clients],
            clients=clients,
            ages=[t - self.round[c] for c in clients],
            step=t,
            n_seen=n_seen,
            **options,
        )


def rounds(case: Case, rule: str, **options: Any) -> NDArray[Any]:
    """Return the directions `[T, P]` of all rounds."""
    history = History()
    return np.stack([history.combine(case, t, rule, **options).direction for t in range(len(case["grads"]))])


def check_fedavg(case: Case, name: str) -> None:
    w = case["w0"]
    for t, delta in enumerate(case["delta"]):
        result = combine("fedavg", -delta, losses=None, n_samples=case["n_samples"][t])
        assert_close(result.weights[0], case["weights"][t], EXACT, f"weights of round {t}")
        w = w - result.direction
        assert_close(w, case["w_after_data_weighted"][t], EXACT, f"model after round {t}")
    volumes = case["client_volumes"]
    population: dict[str, Any] = {"n_clients": int(case["K"]), "total_samples": int(volumes.sum())}
    names = {"uniform": "uniform", "scaled": "weighted_scale", "completed": "weighted_com"}
    for weighting, stored in names.items():
        first = combine(
            "fedavg",
            -case["delta"][0],
            losses=None,
            n_samples=volumes[case["selected"][0]],
            weighting=weighting,
            **population,
        )
        moved = first.keep * case["w0"] - first.direction
        assert_close(moved, case[f"first_round_{stored}"], EXACT, weighting)


def check_fedfv_internal(case: Case, name: str) -> None:
    options: dict[str, Any] = {"alpha": float(case["alpha"]), "tau": int(case["tau"])}
    given: dict[str, Any] = {"losses": case["losses"], "blocks": case["layer_sizes"].tolist()}
    result = combine("fedfv", case["grads"], **given, **options)
    guarded = combine("fedfv", case["grads"], **given, **options, guard=1e-6, window="flgo")
    assert_close(guarded.direction, case["update_gfedplat"], EXACT, "update_gfedplat")
    if np.isfinite(case["update"]).all():
        assert_close(result.direction, case["update"], EXACT, "update")
    else:  # the authors divide zero by zero; our rule makes no move
        assert not result.direction.any()


def check_fedfv_external(case: Case, name: str) -> None:
    options: dict[str, Any] = {"alpha": float(case["alpha"]), "tau": int(case["tau"])}
    later: dict[str, Any] = {"window": "flgo", **options}
    assert_close(rounds(case, "fedfv", **options), case["update"], EXACT, "update")
    assert_close(rounds(case, "fedfv", **later), case["update_flgo_window"], EXACT, "flgo")
    assert_close(rounds(case, "fedfv", **later, guard=1e-6), case["update_gfedplat"], EXACT, "gfedplat")


def check_fedlf(case: Case, name: str) -> None:
    check = next(check for prefix, check in FEDLF.items() if name.startswith(prefix))
    check(case, case["layer_sizes"].tolist())


def _fedlf(case: Case, sizes: list[int], **options: Any) -> Any:
    rule = build("rule", "fedlf", {"zero_tolerance": ZERO, **options})
    return combine(rule, case["grads"], losses=case["losses"], blocks=sizes)


def _single(case: Case, blocks: list[int]) -> None:
    released = _fedlf(case, blocks, form="released").direction
    assert_close(released, case["direction_code_maths_final"], EXACT, "direction_code_maths_final")
    assert_close(released, case["direction_authors_final"], INTERIOR_POINT, "direction_authors_final")
    variants: dict[str, dict[str, Any]] = {
        "direction_paper_rescaled": {},
        "direction_M2_model_level_rescaled": {"level": "model"},
        "direction_M4_no_fair_rescaled": {"fair_row": False},
    }
    for stored, options in variants.items():
        assert_close(_fedlf(case, blocks, **options).direction, case[stored], EXACT, stored)


def _merge(case: Case, blocks: list[int]) -> None:
    result = _fedlf(case, blocks)
    assert_close(result.direction, case["direction_paper_rescaled"], EXACT, "direction_paper_rescaled")
    assert result.diagnostics["blocks"] == len(np.unique(case["paper_groups"]))


def _absent(case: Case, blocks: list[int]) -> None:
    paper = rounds(case, "fedlf", blocks=blocks, zero_tolerance=ZERO)
    released = rounds(case, "fedlf", blocks=blocks, form="released")
    w_after = case["w0"] - case["lr"] * np.cumsum(released, axis=0)
    for t in range(len(paper)):
        what = f"round {t}"
        assert_close(paper[t], case["direction_paper_rescaled"][t], EXACT, f"paper, {what}")
        assert_close(released[t], case["direction_code_maths_final"][t], POLISHED, f"released, {what}")
        assert_close(released[t], case["direction_authors_final"][t], INTERIOR_POINT, f"authors, {what}")
    assert_close(w_after, case["w_after_authors"], INTERIOR_POINT, "w_after_authors")


def _equal_losses(case: Case, blocks: list[int]) -> None:
    stored = "direction_paper_without_fair_row_rescaled"
    assert_close(_fedlf(case, blocks).direction, case[stored], EXACT, stored)


FEDLF = {"single": _single, "merge": _merge, "absent": _absent, "edge_equal_losses": _equal_losses}

CHECKS: dict[str, Callable[[Case, str], None]] = {
    "afl": check_afl,
    "drfl": check_drfl,
    "fedavg": check_fedavg,
    "fedfa": check_fedfa,
    "fedfv_external": check_fedfv_external,
    "fedfv_internal": check_fedfv_internal,
    "fedgini": check_fedgini,
    "fedlf": check_fedlf,
    "fedmdfg": check_fedmdfg,
    "fedmgda_plus": check_fedmgda_plus,
    "qfedavg": check_qfedavg,
    "term": check_term,
}

OTHERS = {
    "ditto_fedprox_client": "a matter of local training, not of a server rule",
    "ditto_server": "a rule of another platform that folds clients in one by one; no rule here",
    "metrics": "published accuracies, for the metrics of the analysis",
    "synthetic": "a data set",
}
"""Kinds of golden vectors that concern no rule, with the reason."""
