"""All golden vectors, file by file: outputs of the authors' own code and exact recomputations."""

from __future__ import annotations

from pathlib import Path

import golden_cases
import numpy as np
import pytest

FILES = [*golden_cases.golden_files()]


@pytest.mark.skipif(
    not FILES, reason=f"no golden vectors in {golden_cases.golden_folder()}; set FEDSIM_GOLDEN"
)
@pytest.mark.parametrize("path", FILES or [Path("none/none")], ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_published_result(path: Path) -> None:
    kind = path.parent.name
    if kind not in golden_cases.CHECKS:
        pytest.skip(f"there is no check for vectors of the kind {kind!r}")
    with np.load(path, allow_pickle=False) as file:
        case = {name: file[name] for name in file.files}
    golden_cases.CHECKS[kind](case, path.stem)
