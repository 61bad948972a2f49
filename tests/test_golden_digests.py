"""The examples give the digests that they gave before; CONTRIBUTING.md says how to change them on purpose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedsim.config import load
from golden_digests import CONFIGS, difference, digests, recorded


def test_every_example_has_a_digest() -> None:
    assert set(recorded()["digests"]) == {run.name for path in CONFIGS for run in load(path)}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_an_example_gives_the_digest_that_it_gave(path: Path) -> None:
    if another := difference():
        pytest.skip(another)
    if load(path)[0].task.name.endswith("mnist") and not Path(os.environ["FEDSIM_DATA"]).is_dir():
        pytest.skip("FEDSIM_DATA names no folder with the data sets")
    found = digests(path)
    expected = {name: recorded()["digests"][name] for name in found}
    assert found == expected, "if this is meant: python tests/golden_digests.py --update, see CONTRIBUTING.md"


def test_a_machine_of_another_kind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "abacus")
    assert "machine " in (told := str(difference()))
    assert "here abacus" in told
