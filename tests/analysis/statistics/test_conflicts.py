from __future__ import annotations

from pathlib import Path

import pytest

from fedsim import analysis
from fedsim.common.errors import RunError
from small import run, small


def test_mc_and_lc_are_the_means_over_steps(tmp_path: Path) -> None:
    opened = analysis.open_run(
        run(small(algorithm={"name": "fedavg"}, record={"conflicts": "layers"}), tmp_path).folder
    )
    table = analysis.conflict_table(opened)
    steps = opened.frame("steps").query("updates > 0")
    assert table.index.tolist() == [-1, 0, 1]
    assert table.present[-1] == pytest.approx(steps.model_conflicts.mean())
    assert table.present[[0, 1]].mean() == pytest.approx(steps.block_conflicts_mean.mean())
    assert (table.absent == 0).all(), "fedavg remembers nobody"


def test_fedlf_has_no_conflict_with_clients_present(tmp_path: Path) -> None:
    opened = analysis.open_run(run(small(record={"conflicts": "layers"}), tmp_path).folder)
    assert analysis.conflict_table(opened).present[-1] == 0
    assert opened.frame("steps").conflicts.sum() > 0, "clients conflict with one another"


def test_a_run_that_recorded_none_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"\[record\] conflicts"):
        analysis.conflict_table(analysis.open_run(run(small(), tmp_path).folder))
