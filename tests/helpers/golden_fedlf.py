"""Checks of golden vectors for FedLF: the paper, the released code and the ablations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.linalg import norm

from fedsim.algorithms.mathematics.geometry import fair_weights
from fedsim.plugins import build
from golden_tools import EXACT, INTERIOR_POINT, POLISHED, Case, assert_close, rounds
from rule_calls import combine

ZERO = 1e-8
"""Relative norm below which the vectors' merging takes a block for zero."""
RAW = {"lengths": "raw"}
"""The text of the paper."""


def check_fedlf(case: Case, name: str) -> None:
    check = next(check for prefix, check in FEDLF.items() if name.startswith(prefix))
    check(case, case["layer_sizes"].tolist())


def _fedlf(case: Case, sizes: list[int], **options: Any) -> Any:
    rule = build("rule", "fedlf", {"zero_tolerance": ZERO, **RAW, **options})
    return combine(rule, case["grads"], losses=case["losses"], blocks=sizes)


def _released(case: Case, sizes: list[int]) -> Any:
    return combine("fedlf_released", case["grads"], losses=case["losses"], blocks=sizes).direction


def _single(case: Case, blocks: list[int]) -> None:
    fair = fair_weights(case["losses"])
    assert_close(fair, case["h_eq5"], EXACT, "h_eq5")
    assert_close(fair @ case["grads"], case["g_P"], EXACT, "g_P")
    released = _released(case, blocks)
    assert_close(released, case["direction_code_maths_final"], EXACT, "direction_code_maths_final")
    assert_close(released, case["direction_authors_final"], INTERIOR_POINT, "direction_authors_final")
    variants: dict[str, dict[str, Any]] = {
        "direction_paper_rescaled": {},
        "direction_M2_model_level_rescaled": {"level": "model"},
        "direction_M4_no_fair_rescaled": {"fair_row": "none"},
    }
    for stored, options in variants.items():
        assert_close(_fedlf(case, blocks, **options).direction, case[stored], EXACT, stored)


def _merge(case: Case, blocks: list[int]) -> None:
    result, apart = _fedlf(case, blocks), _fedlf(case, blocks, merging=False).direction
    released = _released(case, blocks)
    if released.any():  # else the authors' code stretches the rounding of a zero direction
        assert_close(released, case["direction_authors_final"], INTERIOR_POINT, "direction_authors_final")
    stored = case["direction_paper_no_merging"]
    assert_close(apart, stored * (norm(apart) / norm(stored)), POLISHED, "direction_paper_no_merging")
    assert_close(result.direction, case["direction_paper_rescaled"], EXACT, "direction_paper_rescaled")
    assert result.diagnostics["blocks"] == len(np.unique(case["paper_groups"]))


def _absent(case: Case, blocks: list[int]) -> None:
    paper = rounds(case, "fedlf", blocks=blocks, zero_tolerance=ZERO, **RAW)
    released = rounds(case, "fedlf_released", blocks=blocks)
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
