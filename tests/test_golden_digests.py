"""The examples give the digests that they gave before; CONTRIBUTING.md says how to change them on purpose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedsim.config import load
from golden_digests import CONFIGS, difference, digests, kind, recorded, records, updated


def test_every_digest_is_of_an_example() -> None:
    names = {run.name for path in CONFIGS for run in load(path)}
    assert all(set(record["digests"]) <= names for record in records())
    assert set.union(*(set(record["digests"]) for record in records())) == names, "each was taken somewhere"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_an_example_gives_the_digest_that_it_gave(path: Path) -> None:
    expected = {run.name: recorded().get(run.name) for run in load(path)}
    if None in expected.values():
        pytest.skip(f"no digest is recorded for machines such as this: {kind()}")
    if load(path)[0].task.name.endswith("mnist") and not Path(os.environ["FEDSIM_DATA"]).is_dir():
        pytest.skip("FEDSIM_DATA names no folder with the data sets")
    assert digests(path) == expected, (
        "if this is meant: python tests/golden_digests.py --update, see CONTRIBUTING.md"
    )


def test_a_machine_of_another_kind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "abacus")
    assert "machine " in (told := str(difference()))
    assert "here abacus" in told
    assert recorded() == {}


def test_what_changed_here_is_to_be_found_out_again_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    here, other = kind(), kind() | {"machine": "abacus"}
    before = [
        {"kind": other, "digests": {"same": "1", "changed": "2", "gone": "3"}},
        {"kind": here, "digests": {"same": "4", "changed": "5", "gone": "6"}},
    ]
    monkeypatch.setattr("golden_digests.records", lambda: before)
    assert updated({"same": "4", "changed": "7", "new": "8"}) == [
        {"kind": other, "digests": {"same": "1"}},
        {"kind": here, "digests": {"same": "4", "changed": "7", "new": "8"}},
    ]
