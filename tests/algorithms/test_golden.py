"""Our rules against the outputs of the authors' own code and exact recomputations, file by file."""

from __future__ import annotations

from pathlib import Path

import golden_cases
import numpy as np
import pytest

FILES = [path for path in golden_cases.golden_files() if path.parent.name not in golden_cases.OTHERS]
"""Vectors of rules, and of kinds that nobody knows; those of other parts are checked beside these parts."""


@pytest.mark.skipif(
    not FILES, reason=f"no golden vectors in {golden_cases.golden_folder()}; set FEDSIM_GOLDEN"
)
@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_rule_gives_the_published_result(path: Path) -> None:
    kind = path.parent.name
    if kind not in golden_cases.CHECKS:
        pytest.skip(f"there is no check for vectors of the kind {kind!r}")
    with np.load(path, allow_pickle=False) as file:
        case = {name: file[name] for name in file.files}
    golden_cases.CHECKS[kind](case, path.stem)
