"""What becomes of a run whose updates are not finite, or too long."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim import analysis
from fedsim.cli.main import main
from fedsim.common.errors import ConfigError, RunError
from fedsim.config.run import RunConfig
from fedsim.invariants import check
from fedsim.server.step_input import StepInput
from fedsim.server.update_screening import SKIP, Policy, Screened, UpdateScreening, diverged, screen
from fedsim.training.attack import attacked
from fedsim.training.job import Reports
from small import run, small

BROKEN = {"name": "nan", "clients": [2, 5, 7], "value": "inf"}
HUGE = {"name": "scale", "clients": [2, 5, 7], "factor": 1e4}


def changed(adversary: dict[str, Any], **more: Any) -> RunConfig:
    return small(**({"adversary": adversary, "algorithm": {"name": "fedavg"}} | more))


def final(folder: Path) -> torch.Tensor:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")["params"]


@pytest.mark.parametrize("table", [{}, {"bad_updates": {"policy": "clip", "limit": 1e3}}])
def test_by_default_what_is_not_finite_is_left_out_and_recorded(
    table: dict[str, Any], tmp_path: Path
) -> None:
    config = changed(BROKEN, **table)
    opened = analysis.open_run(run(config, tmp_path).folder)
    jobs = opened.frame("jobs")
    arrived = jobs.status.isin(("aggregated", "nonfinite"))
    struck = attacked(config.adversaries(), config.seed, jobs)["nan"]
    assert struck[arrived].any()
    assert ((jobs.status == "nonfinite") == (struck & arrived)).all()
    assert opened.frame("steps").nonfinite.sum() == (struck & arrived).sum()
    assert final(opened.folder).isfinite().all()


def test_what_is_too_long_is_skipped_like_it(tmp_path: Path) -> None:
    limited = {"bad_updates": {"limit": 50.0}}
    skipped = run(changed(HUGE, **limited), tmp_path / "a")
    broken = run(changed(BROKEN, **limited), tmp_path / "b")
    torch.testing.assert_close(final(skipped.folder), final(broken.folder), rtol=0, atol=0)
    assert analysis.open_run(skipped.folder).manifest["jobs"]["nonfinite"] > 0


def test_clipping_leaves_the_direction_and_counts(tmp_path: Path) -> None:
    """With rows cut to a common norm, the factor of a scaling attack makes no difference."""
    how = {"bad_updates": {"policy": "clip", "limit": 0.05}}
    huge, larger = (
        run(changed(HUGE | {"factor": factor}, **how), tmp_path / str(factor)) for factor in (1e3, 1e5)
    )
    torch.testing.assert_close(final(huge.folder), final(larger.folder), rtol=1e-4, atol=1e-6)
    opened = analysis.open_run(huge.folder)
    assert opened.manifest["clipped"] >= 3
    assert opened.manifest["jobs"].get("nonfinite", 0) == 0
    assert opened.frame("steps").direction_norm.max() <= 0.05 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("adversary", "said"),
    [
        (BROKEN, r"client [257] .*is not finite: entry 0 is inf, one of 1 such entries out of 610"),
        (HUGE, r"client [257] .*has norm .*expected at most 50, the limit of \[bad_updates\]"),
    ],
)
def test_stop_names_step_client_job_and_value(adversary: dict[str, Any], said: str, tmp_path: Path) -> None:
    config = changed(adversary, bad_updates={"policy": "stop", "limit": 50.0})
    with pytest.raises(RunError, match=r"step \d+: the update of client \d+ \(job \d+\) ") as caught:
        run(config, tmp_path)
    caught.match(said)
    opened = analysis.open_run(tmp_path / "small")
    assert opened.manifest["status"] == "failed"
    assert str(caught.value) in opened.manifest["error"]
    assert len(opened.frame("evals")) > 0
    step = int(str(caught.value).split()[1].rstrip(":"))
    assert opened.frame("steps").step.tolist() == list(range(step))


def test_the_command_line_says_it_with_exit_code_1(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [
        "stop.steps=9",
        "bad_updates.policy=stop",
        'adversary={name="nan", share=0.3}',
        "adversary.entries=2",
    ]
    example = str(root / "examples" / "oort_fedbuff.toml")
    arguments = ["run", example, "--workers", "0", "--out", str(tmp_path)]
    for text in sets:
        arguments += ["--set", text]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1
    assert "entry 0 is nan, one of 2 such entries" in capsys.readouterr().err
    manifest = json.loads((tmp_path / "oort_fedbuff" / "manifest.json").read_text())
    assert manifest["status"] == "failed"


@pytest.mark.parametrize(
    ("rule", "hidden", "what"),
    [
        ("fedavg", 8, "a direction with norm inf"),
        ("fedfv", 8, "a direction with norm inf"),
        ("fedmgda_plus", 128, "updates with squared norms that are not finite"),
        ("fedlf", 128, "updates with squared norms that are not finite"),
    ],
)
def test_divergence_names_step_rule_and_the_longest_update(
    rule: str, hidden: int, what: str, tmp_path: Path
) -> None:
    """Rows that are finite, but whose squares float32 cannot hold."""
    config = changed(
        {"name": "scale", "clients": [2, 5, 7], "factor": 1e25},
        algorithm={"name": rule},
        model={"name": "mlp", "hidden": [hidden]},
    )
    said = rf"step \d+, rule '{rule}': {what}; .*client [257]'s, with norm .*e\+2"
    with pytest.raises(RunError, match=said):
        run(config, tmp_path)
    assert analysis.open_run(tmp_path / "small").manifest["status"] == "failed"


@pytest.mark.parametrize("policy", ["clip", "skip_and_record"])
def test_a_limit_saves_a_run_that_would_diverge(policy: str, tmp_path: Path) -> None:
    config = changed(
        {"name": "scale", "share": 0.3, "factor": 1e25},
        algorithm={"name": "fedlf"},
        bad_updates={"policy": policy, "limit": 1.0},
    )
    assert run(config, tmp_path).status == "done"
    assert final(tmp_path / "small").isfinite().all()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"policy": "clip"}, "policy 'clip' needs 'limit'"),
        ({"policy": "skip"}, "bad_updates.policy"),
        ({"limit": 0}, "bad_updates.limit"),
        ({"limits": 3}, "did you mean 'limit'"),
    ],
)
def test_a_mistake_is_named(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        small(bad_updates=table)


# One step's updates: of norms 5, 13, infinite, 25 and not a number

INF = float("inf")
ROWS = torch.tensor([[3.0, 4, 0], [0, 5, 12], [INF, 0, 0], [7, 0, 24], [0, float("nan"), -INF]])


def judged(policy: Policy, limit: float | None, rows: torch.Tensor = ROWS, jobs: Any = ()) -> Screened:
    n = len(rows)
    clients = 10 + np.arange(n)
    finite = rows.isfinite().all(dim=1).numpy()
    reports = replace(Reports.nothing(n), finite=finite)
    arrivals = StepInput(
        7, clients, 0 * clients, 0 * clients + 1, clients, reports, jobs=np.array(jobs, np.int64)
    )
    return screen(UpdateScreening(policy, limit), arrivals, rows)


@pytest.mark.parametrize(
    ("limit", "usable"),
    [
        (None, [True, True, False, True, False]),
        (25.0, [True, True, False, True, False]),  # as long as the limit is not too long
        (24.99, [True, True, False, False, False]),
        (4.0, [False] * 5),
    ],
)
def test_rows_above_the_limit_are_skipped_and_the_others_stay(
    limit: float | None, usable: list[bool]
) -> None:
    found = judged("skip_and_record", limit)
    assert found.usable.tolist() == usable
    assert found.rows is ROWS
    assert found.clipped == 0


@pytest.mark.parametrize(
    ("limit", "clipped"), [(None, []), (25.0, []), (13.0, [3]), (10.0, [1, 3]), (1.0, [0, 1, 3])]
)
def test_clipped_rows_have_the_limit_as_norm_and_the_others_stay(
    limit: float | None, clipped: list[int]
) -> None:
    found = judged("clip", limit)
    assert found.usable.tolist() == [True, True, False, True, False]
    assert found.clipped == len(clipped)
    for i, (row, before) in enumerate(zip(found.rows, ROWS, strict=True)):
        if i in clipped:
            torch.testing.assert_close(row, before * (limit or 1) / before.norm())
        else:
            assert torch.equal(row.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize(
    ("rows", "limit", "jobs", "said"),
    [
        (
            [0, 2, 4],
            None,
            (),
            r"^step 7: the update of client 11 is not finite: entry 0 is inf, one of 1 such entries out of 3;",
        ),
        (
            [4, 2],
            None,
            (8, 9),
            r"client 10 \(job 8\) is not finite: entry 1 is nan, one of 2 such entries out of 3;",
        ),
        ([0, 3, 1], 12.0, (), r"client 11 has norm 25: expected at most 12, the limit of \[bad_updates\]"),
        ([0, 3, 2], 12.0, (), "client 12 is not finite"),
    ],
)
def test_stop_names_the_first_bad_update(rows: list[int], limit: float | None, jobs: Any, said: str) -> None:
    with pytest.raises(RunError, match=said):
        judged("stop", limit, ROWS[rows], jobs)


def test_stop_lets_good_updates_pass() -> None:
    found = judged("stop", 13.0, ROWS[:2])
    assert found.usable.all()
    assert torch.equal(torch.stack(list(found.rows)), ROWS[:2])


def test_the_longest_update_of_a_step_that_diverged_is_named() -> None:
    error = diverged("a direction with norm inf", 3, "fedavg", np.array([8, 5, 9]), ROWS[[0, 3, 1]])
    assert str(error).startswith(
        "step 3, rule 'fedavg': a direction with norm inf; the longest update of the step is client 5's, with norm 25. "
    )


def test_by_default_bad_updates_are_skipped_and_none_is_too_long() -> None:
    assert UpdateScreening() == SKIP == UpdateScreening("skip_and_record", None)


@pytest.mark.filterwarnings("ignore:All-NaN")
def test_a_run_without_a_finite_update_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = changed({"name": "nan", "share": 1.0}, world={"scenario": "always_on", "horizon": "2h"})
    opened = analysis.open_run(run(config, tmp_path).folder)
    assert opened.manifest["warning"] == "no usable update"
    assert set(opened.frame("jobs").status) == {"nonfinite"}
    assert main_says(opened.folder, capsys).startswith("small [no")
    assert analysis.open_run(run(small(name="sound"), tmp_path).folder).manifest["warning"] is None


def test_a_model_whose_outputs_are_no_numbers_has_no_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had accuracy 0.00 and angle 0.000, as if it were perfectly fair."""
    (tmp_path / "mine.py").write_text(
        "import torch\n\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n"
        "        return super().forward(x.flatten(1)) * float('nan' if not self.training else 1)\n\n"
        "def mine(*, in_shape, n_classes):\n    return Net(64, n_classes)\n"
    )
    stop = {"steps": 4, "metric": "angle_rad", "target": 0.01}
    model = {"name": f"{tmp_path}/mine.py:mine"}
    opened = analysis.open_run(
        run(small(model=model, stop=stop, algorithm={"name": "fedavg"}), tmp_path).folder
    )
    assert opened.manifest["ended_by"] == "steps"
    assert opened.manifest["warning"] == "accuracy is no number"
    assert opened.frame("evals").accuracy.isna().all()
    assert all(math.isnan(value) for value in opened.final().summary().values())
    assert not check(opened.folder).violations
    assert "–    –" in main_says(opened.folder, capsys)
    sound = run(small(name="sound"), tmp_path).folder
    assert opened.history()["angle_rad"].isna().all()
    compared = analysis.compare(analysis.open_run(sound), opened)
    assert (compared.gained, compared.lost, compared.equal) == (0, 0, 0)
    assert {row[2:] for row in compared.rows()[:6]} == {("–", "–")}


def main_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the row of a run in the closing table that its report shows."""
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder)])
    assert not ended.value.code
    out = capsys.readouterr().out
    return out[out.index("small") :]
