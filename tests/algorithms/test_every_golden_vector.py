"""All golden vectors, file by file: outputs of the authors' own code and exact recomputations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import golden_cases
import inputs

FILES = [*golden_cases.golden_files()]
OWN = inputs.ROOT / "tests" / "golden"


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_published_result(path: Path) -> None:
    kind = path.parent.name
    if kind not in golden_cases.CHECKS:
        pytest.skip(f"there is no check for vectors of the kind {kind!r}")
    with np.load(path, allow_pickle=False) as file:
        case = {name: file[name] for name in file.files}
    golden_cases.CHECKS[kind](case, path.stem)


def test_there_are_vectors() -> None:
    assert FILES, (
        f"no golden vectors in {inputs.GOLDEN}: FEDSIM_GOLDEN names a folder of folders of .npz files"
    )


def test_a_clone_has_vectors_of_each_kind_in_numbers_alone() -> None:
    files = sorted(OWN.glob("*/*.npz"))
    assert {path.parent.name for path in files} == set(golden_cases.CHECKS)
    assert sum(path.stat().st_size for path in files) < 3_000_000
    for path in files:
        with np.load(path, allow_pickle=False) as file:
            assert {file[name].dtype.kind for name in file.files} <= set("biuf"), path


def test_the_page_of_the_vectors_says_how_each_kind_was_made() -> None:
    page = (OWN / "README.md").read_text(encoding="utf-8")
    assert [kind for kind in golden_cases.CHECKS if f"`{kind}`" not in page] == []
