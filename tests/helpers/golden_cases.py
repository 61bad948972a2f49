"""One check per kind of golden vector: recompute with our code what the authors' code or the formulas gave.

A kind is a folder of `.npz` files; any folder of files with the same arrays will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import inputs
from golden_fedlf import check_fedlf
from golden_fedmdfg import check_fedmdfg
from golden_other_parts import check_metrics, check_proximal_client, check_synthetic
from golden_tools import EXACT, Case, assert_close, rounds
from golden_weights import (
    check_afl,
    check_ditto_server,
    check_drfl,
    check_fedavg,
    check_fedfa,
    check_fedgini,
    check_fedmgda_plus,
    check_qfedavg,
    check_term,
)
from rule_calls import combine


def golden_files() -> Iterator[Path]:
    """Yield all files, kind by kind."""
    yield from sorted(inputs.GOLDEN.glob("*/*.npz"))


def check_fedfv_internal(case: Case, name: str) -> None:
    options: dict[str, Any] = {"alpha": float(case["alpha"]), "tau": int(case["tau"])}
    given: dict[str, Any] = {"losses": case["losses"], "blocks": case["layer_sizes"].tolist()}
    result = combine("fedfv", case["grads"], **given, **options)
    guarded = combine("fedfv_released", case["grads"], **given, **options, guard=1e-6)
    assert_close(guarded.direction, case["update_gfedplat"], EXACT, "update_gfedplat")
    if np.isfinite(case["update"]).all():
        assert_close(result.direction, case["update"], EXACT, "update")
    else:  # the authors divide zero by zero; our rule makes no move
        assert not result.direction.any()


def check_fedfv_external(case: Case, name: str) -> None:
    options: dict[str, Any] = {"alpha": float(case["alpha"]), "tau": int(case["tau"])}
    assert_close(rounds(case, "fedfv", **options), case["update"], EXACT, "update")
    assert_close(rounds(case, "fedfv_released", **options), case["update_flgo_window"], EXACT, "flgo")
    guarded = rounds(case, "fedfv_released", **options, guard=1e-6)
    assert_close(guarded, case["update_gfedplat"], EXACT, "gfedplat")


CHECKS: dict[str, Callable[[Case, str], None]] = {
    "afl": check_afl,
    "ditto_fedprox_client": check_proximal_client,
    "ditto_server": check_ditto_server,
    "drfl": check_drfl,
    "fedavg": check_fedavg,
    "fedfa": check_fedfa,
    "fedfv_external": check_fedfv_external,
    "fedfv_internal": check_fedfv_internal,
    "fedgini": check_fedgini,
    "fedlf": check_fedlf,
    "fedmdfg": check_fedmdfg,
    "fedmgda_plus": check_fedmgda_plus,
    "metrics": check_metrics,
    "qfedavg": check_qfedavg,
    "synthetic": check_synthetic,
    "term": check_term,
}
