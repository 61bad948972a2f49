from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from fedsim import analysis
from fedsim.analysis.tables.difference_tables import p_text
from fedsim.cli.main import app
from fedsim.common.errors import ConfigError, FolderError
from small import run, small
from synthetic_runs import evals_table, jobs_table
from synthetic_studies import write_study

RULES, SEEDS = ("fedavg", "fedfv"), (1, 2, 3)
SPLITS = {"valid": 0.9, "test": 0.3}


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two studies of the same runs: two rules, three seeds."""
    out = tmp_path_factory.mktemp("studies")
    cells = []
    for rule in RULES:
        for seed in SEEDS:
            config = small(name=f"{rule}/seed-{seed}", seed=seed, algorithm={"name": rule}, stop={"steps": 4})
            run(config, out / "first" / "runs")
            where = {"folder": f"runs/{rule}/seed-{seed}", "status": "done"}
            cells.append({"levels": {"rule": rule}, "seed": seed, **where})
    content = {"format": 1, "axes": {"rule": RULES}, "seeds": SEEDS, "cells": cells}
    (out / "second").mkdir()
    (out / "second" / "runs").symlink_to(out / "first" / "runs")
    for name in ("first", "second"):
        (out / name / "study.json").write_text(json.dumps(content | {"name": name}))
    return [out / "first", out / "second"]


def compared(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return " ".join(result.output.split())


def test_a_study_is_compared_by_seed(studies: list[Path]) -> None:
    text = compared(studies[0], "--metric", "mean_percent", "--at", "end", "--at", "bytes")
    (difference,) = analysis.differences(analysis.open_study(studies[0]), "mean_percent")
    assert "rule: difference from fedavg, at the end of each run" in text
    assert "rule: difference from fedavg, after equal bytes moved" in text
    assert f"{difference.mean:+.3g}" in text
    assert "angle" not in text
    turned = compared(studies[0], "--metric", "mean_percent", "--baseline", "fedfv")
    assert f"{-difference.mean:+.3g}" in turned


def test_the_last_evaluations_are_averaged_if_asked_for(studies: list[Path]) -> None:
    study = analysis.open_study(studies[0]).asked({"last": 2})
    text = compared(studies[0], "--metric", "mean_percent", "--last", "2", "--by", "availability")
    assert text.count("at the end of each run, averaged over the last 2 evaluations") >= 3
    assert f"{analysis.differences(study, 'mean_percent')[0].mean:+.3g}" in text
    assert CliRunner().invoke(app, ["compare", str(studies[0]), "--last", "0"]).exit_code == 2


def test_the_test_that_decides_can_be_chosen(studies: list[Path]) -> None:
    study = analysis.open_study(studies[0]).asked({"test": "t"})
    text = compared(studies[0], "--metric", "mean_percent", "--test", "t")
    (difference,) = analysis.differences(study, "mean_percent")
    assert f"{p_text(difference.p_holm)} " in text
    assert f"({p_text(difference.p_value)})" in text
    assert "p Holm is that of the paired t test (Student)" in text
    assert "exact Wilcoxon signed-rank test" in compared(studies[0], "--metric", "mean_percent")
    for wrong in (["--test", "student"], ["--test", ""]):
        assert CliRunner().invoke(app, ["compare", str(studies[0]), *wrong]).exit_code == 2
    for option, takes in (("--components", "--by or --test"), ("--published", "no other study or option")):
        with pytest.raises(ConfigError, match=f"{option}: it .*{takes}"):
            compared(studies[0], option, "--test", "t")
    with pytest.raises(ConfigError, match="--target: it names the metric, and takes --axis"):
        compared(studies[0], "--target", "mean_percent=1", "--test", "t")


def test_groups_of_clients_are_shown_if_asked_for(studies: list[Path]) -> None:
    text = compared(studies[0], "--metric", "gini", "--by", "label")
    assert "first: accuracy by label at the end of each run" in text
    assert "worst group percent" in text


def test_no_number_is_cut_off_in_a_narrow_terminal(
    studies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = [studies[0] / "runs" / rule / "seed-1" for rule in RULES]
    wide = compared(*pair)
    monkeypatch.setenv("COLUMNS", "40")
    narrow = compared(*pair)
    assert "…" not in narrow
    assert re.findall(r"[+-]?\d+\.\d+", narrow) == re.findall(r"[+-]?\d+\.\d+", wide)
    for asked in (pair, [studies[0]]):
        assert "…" not in compared(*asked, "--by", "availability")


def test_two_studies_are_compared_with_each_other(studies: list[Path]) -> None:
    text = compared(*studies, "--metric", "mean_percent")
    assert "study: difference from first, at the end of each run" in text
    assert "rule=fedfv" in text
    assert "+0" in text


def test_two_runs_are_compared_by_client_at_equal_points(studies: list[Path]) -> None:
    runs = [studies[0] / f"runs/{rule}/seed-1" for rule in RULES]
    text = compared(*runs, "--by", "availability")
    comparison = analysis.compare(*map(analysis.open_run, runs))
    assert f"{comparison.mean_percent:+.2f} ± {comparison.standard_error_percent:.2f}" in text
    assert "at equal points" in text
    assert "survivors against victims of dropout" in text


def test_equal_points_count_the_clients_that_all_evaluations_have(tmp_path: Path) -> None:
    """A run's end is evaluated on all clients, and its other evaluations on four."""
    folders = [
        run(
            small(name=f"{steps}", stop={"steps": steps}, evaluate={"every_steps": 2, "clients": 4}), tmp_path
        ).folder
        for steps in (4, 8)
    ]
    text = compared(*folders)
    assert "last evaluation on the test split, 12 clients" in text
    assert "8 against 4, at equal points, 4 clients" in text
    first, second = (analysis.open_run(folder) for folder in folders)
    sample = first.evaluations()[0].client
    at_four = [next(e for e in r.evaluations() if e.step == 4) for r in (first, second)]
    accuracy = [each.accuracy[np.isin(each.client, sample)] for each in at_four]
    mean = 100 * (accuracy[1] - accuracy[0]).mean()
    assert analysis.compare(first, second, at="steps").mean_percent == pytest.approx(mean)


def test_groups_are_of_the_split_that_is_compared(tmp_path: Path) -> None:
    """Clients 0 and 1 had 2 jobs, the others 1; on `valid` they have 90 %, on `test` 30 %, and the others 60 %."""

    def made(*_: object) -> dict[str, Any]:
        evals = [evals_table([[best, best, 0.6, 0.6]], split=split) for split, best in SPLITS.items()]
        client = np.array([0, 0, 1, 1, 2, 3])
        jobs = jobs_table(dispatch_us=np.arange(6), end_us=np.arange(1, 7), client=client)
        return {"evals": pa.concat_tables(evals), "jobs": jobs}

    study = write_study(tmp_path / "made", made, axes={"rule": ("a", "b")}, seeds=(1, 2))
    runs = [cell.folder for cell in study.cells if cell.seed == 1]
    for folders in (runs, [study.folder]):
        for split, mean in SPLITS.items():
            text = compared(*folders, "--by", "jobs", "--split", split)
            groups = text[text.index("accuracy by") :]
            assert f"on the {split} split" in groups
            assert f"{100 * mean:.0f}" in groups.split()


def test_two_runs_are_compared_at_a_point_of_choice(studies: list[Path]) -> None:
    first, second = (studies[0] / f"runs/{rule}/seed-1" for rule in RULES)
    text = compared(first, second, "--at", "steps=1", "--at", "time")
    found = analysis.compare(analysis.open_run(first), analysis.open_run(second), at="steps=1")
    assert found.mean_shown in text
    assert "steps=1" in text
    assert "bytes" not in text
    assert "expected evaluations before and after steps=999" in compared(first, second, "--at", "steps=999")


def test_one_run_alone_is_shown_by_groups(studies: list[Path]) -> None:
    text = compared(studies[0] / "runs/fedavg/seed-1", "--by", "jobs")
    assert "accuracy by group of clients" in text
    assert "each arm against" not in text


def test_an_unknown_group_costs_no_other_table(studies: list[Path]) -> None:
    runs = [studies[0] / "runs" / rule / "seed-1" for rule in RULES]
    for folders, title in ((studies[:1], "difference from fedavg"), (runs, "at equal points")):
        result = CliRunner().invoke(app, ["compare", *map(str, folders), "--by", "colour"])
        assert title in " ".join(result.output.split())
        assert str(result.exception).startswith("clients cannot be grouped by 'colour'")


def test_arms_are_compared_with_the_first_or_with_another(
    studies: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["fedfv", "fedavg", *(f"again{i}" for i in range(6))]
    for name in names:
        rule = name if name in RULES else "fedavg"
        shutil.copytree(studies[0] / f"runs/{rule}/seed-3", tmp_path / name)
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest | {"label": name}))
    (tmp_path / "arms.json").write_text(json.dumps({"arms": names}))
    monkeypatch.setenv("COLUMNS", "80")
    text = compared(tmp_path)
    first, second = (analysis.open_run(tmp_path / name) for name in ("fedfv", "fedavg"))
    there = analysis.compare(first, second)
    assert "each arm against fedfv" in text
    assert text.count(f"{there.mean_percent:+.2f} ± {there.standard_error_percent:.2f}") == 7
    assert f"± {there.standard_error_percent:.2f} {there.gained} / {there.lost} / {there.equal}" in text
    assert "…" not in text
    back = analysis.compare(second, first)
    turned = compared(tmp_path, "--baseline", "fedavg", "--by", "availability")
    assert "each arm against fedavg" in turned
    assert f"{back.mean_percent:+.2f} ± {back.standard_error_percent:.2f}" in turned
    assert turned.count("+0.00 ± 0.00 0 / 0 / 12") == 6
    assert "survivors against victims of dropout" in turned
    with pytest.raises(ConfigError, match="there is no arm 'fedag'; did you mean 'fedavg'"):
        compared(tmp_path, "--baseline", "fedag")
    with pytest.raises(ConfigError, match=r"--baseline: .* of two runs the first is the baseline"):
        compared(first.folder, second.folder, "--baseline", "fedavg")


def test_what_cannot_be_compared_is_said(studies: list[Path], tmp_path: Path) -> None:
    one, several = studies[0] / "runs/fedavg/seed-1", tmp_path / "several"
    several.mkdir()
    for name in "abc":
        (several / name).symlink_to(one)
    failed = write_study(tmp_path / "failed", lambda *_: None, axes={"rule": RULES}, seeds=(1, 2)).folder
    for arguments, error, message in (
        ((failed,), FolderError, "failed: no run of the study is done: 4 failed; run them with fedsim study"),
        ((failed, "--target", "mean_percent=1"), FolderError, "no run of the study is done"),
        ((failed, "--at", "steps"), FolderError, "no run of the study is done"),
        ((studies[0], failed), FolderError, "failed: no run of the study is done"),
        ((one,), ConfigError, "expected a second run to compare it with, found none"),
        ((one, "--by", "used", "--baseline", "a"), ConfigError, "one run alone is shown with --by"),
        (
            (studies[0], "--claim", "gini: a < b", "--test", "t", "--by", "used"),
            ConfigError,
            "found --by, --test",
        ),
        (
            (studies[0], "--claim", "gini: a < b", "--at", "end", "--at", "time"),
            ConfigError,
            "about one study at one point, .* found end and time",
        ),
        ((studies[0], "--published", "--target", "gini=1"), ConfigError, "option but --last; found --target"),
        ((one, several), ConfigError, "expected two runs, found 4"),
        ((studies[0], one), FolderError, "is not the folder of a study"),
        ((studies[0], "--axis", "rul"), ConfigError, "did you mean 'rule'"),
        ((studies[0], "--by", "availabilty"), ConfigError, "did you mean 'availability'"),
        ((studies[0], "--by", "label2"), ConfigError, "did you mean 'label"),
        ((studies[0], "--by", ""), ConfigError, "--by: expected a name, found none"),
        ((studies[0], "--baseline", ""), ConfigError, "--baseline: expected a name, found none"),
        (
            (studies[0], "--split", "train"),
            FolderError,
            "no evaluation on split 'train' was recorded; found test",
        ),
        ((studies[0], "--split", "tets"), FolderError, "there is no split 'tets'; did you mean 'test'"),
        ((one, one, "--metric", "gini"), ConfigError, "--metric: it is for studies, and .* is a run"),
        ((one, "--at", "steps", "--by", "used"), ConfigError, "--at: it is for studies"),
        ((one, one, "--at", "stepz"), ConfigError, "there is no point 'stepz'"),
        ((one, one, "--last", "2"), ConfigError, "--last: it is for studies"),
        ((one, one, "--test", "t"), ConfigError, "--test: it is for studies"),
        ((studies[0], "--last", "99"), FolderError, "last: expected 99 evaluations to average, found "),
        ((one, tmp_path / "none"), FolderError, "there is no run folder"),
        ((one, studies[0] / "runs/fedavg/seed-2"), FolderError, "data seeds 1 and 2; .*run a study"),
    ):
        with pytest.raises(error, match=message):
            compared(*arguments)


def test_the_time_to_a_target_is_compared_by_seed(studies: list[Path]) -> None:
    study = analysis.open_study(studies[0])
    values = study.frame(["mean_percent"])["mean_percent"]
    low, high = float(values.min()) / 2, 100
    text = compared(studies[0], "--target", f"mean_percent={low}", "--at", "steps", "--at", "time")
    assert f"first: steps to mean accuracy of {low:g} %" in text
    assert f"first: virtual time to mean accuracy of {low:g} %" in text
    assert text.count("3 of 3") >= 4
    assert "speed-up over" in text
    assert "With 3 seeds it cannot be below 0.25" in text
    assert compared(studies[0], "--target", f"mean_percent={high}").count("0 of 3 – – –") == 2
    for wrong in ("mean_percent", "mean_percent=", "=80", "mean_percent=nan", "mean_percent=many"):
        result = CliRunner().invoke(app, ["compare", str(studies[0]), "--target", wrong])
        assert isinstance(result.exception, ConfigError)
        assert "expected a metric and a value, such as mean_percent=80" in str(result.exception)
    for option in (
        ("--metric", "gini"),
        ("--by", "compute"),
        ("--components",),
        ("--at", "end"),
        ("--published",),
    ):
        result = CliRunner().invoke(app, ["compare", str(studies[0]), "--target", "gini=0.1", *option])
        assert isinstance(result.exception, ConfigError)
        assert option[0] in str(result.exception) or "--target" in str(result.exception)
    single = studies[0] / "runs" / "fedavg" / "seed-1"
    result = CliRunner().invoke(app, ["compare", str(single), str(single), "--target", "gini=0.1"])
    assert "--target: it is for studies" in str(result.exception)
