"""`fedsim run` with several seeds or values: the study that it makes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from fedsim import analysis
from fedsim.cli.main import app
from fedsim.common.errors import ConfigError
from fedsim.common.units import US
from fedsim.config.errors import read_toml
from fedsim.studies.grid import cells_of
from fedsim.studies.key_axis import several
from fedsim.studies.load_study import load_study, seeds_of
from fedsim.studies.run import study as run_study_file
from fedsim.studies.sweep import sweep
from small import small


def written(folder: Path, **changes: Any) -> Path:
    """Write the small run's configuration, without what fedsim chose."""
    path = folder / "one.toml"
    path.write_text(tomli_w.dumps(small(stop={"steps": 2}).resolved() | changes))
    return path


def ran(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["run", *map(str, arguments)], catch_exceptions=False)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("algorithm.alpha=0.1,0.2", [0.1, 0.2]),
        ("algorithm.name=fedavg, fedfv", ["fedavg", "fedfv"]),
        ("stop.time=1h,90min", ["1h", "90min"]),
        ("train.batch_size=10,full", [10, "full"]),
        ("model.hidden=[8],[8, 4]", [[8], [8, 4]]),
        ("algorithm.fair_row=true,false", [True, False]),
        ("train.decay_at=[10,20]", []),
        ("world={scenario='churn', clients=3}", []),
        ('task.data_dir="a,b"', []),
        ("seed=3", []),
        ("seed", []),
    ],
)
def test_values_between_commas_are_several_and_a_list_is_one(text: str, values: list[Any]) -> None:
    assert several(text) == values


@pytest.mark.parametrize(
    ("first", "second"), [("0.1,0.2", "0.3"), ("0.3", "0.1,0.2"), ("0.1,0.2", "0.3,0.4")]
)
def test_a_key_that_is_given_twice_is_refused(first: str, second: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=f"--set train.lr={first}: no effect, as another --set gives train.lr"
    ):
        sweep(written(tmp_path), [f"train.lr={first}", f"train.lr={second}"])


def test_the_grid_has_each_seed_with_each_value_and_each_arm(tmp_path: Path) -> None:
    arms = {"fedavg": {"algorithm": {"name": "fedavg"}}, "fedfv": {"algorithm": {"name": "fedfv"}}}
    path = written(tmp_path, arms=arms)
    study = sweep(path, ("pacing.clients=3,4", "stop.steps=1", "train.lr=0.1,0.2"), "2,5")
    assert study.seeds == (2, 5)
    assert {axis: list(levels) for axis, levels in study.axes.items()} == {
        "arm": ["fedavg", "fedfv"],
        "pacing_clients": ["3", "4"],
        "lr": ["0.1", "0.2"],
    }
    assert study.compare is not None
    assert (study.compare.axis, study.compare.baseline) == ("arm", "fedavg")
    cells = cells_of(study, "one.toml")
    assert len(cells) == 16
    assert {(c.config.algorithm.name, c.config.pacing.clients, c.config.train.lr, c.seed) for c in cells} == {
        (rule, clients, lr, seed)
        for rule in ("fedavg", "fedfv")
        for clients in (3, 4)
        for lr in (0.1, 0.2)
        for seed in (2, 5)
    }
    assert {cell.config.stop.steps for cell in cells} == {1}


def test_names_of_plug_ins_are_levels_of_their_table_and_drop_the_options_before(tmp_path: Path) -> None:
    study = sweep(written(tmp_path), ("algorithm.name=fedavg,fedfv", "train.weight_decay=0,1e-3"))
    assert study.seeds == (3,)
    assert {a: list(levels) for a, levels in study.axes.items()} == {
        "algorithm": ["fedavg", "fedfv"],
        "weight_decay": ["0", "0.001"],
    }
    assert [c.config.algorithm.name for c in cells_of(study, "one.toml")] == ["fedavg"] * 2 + ["fedfv"] * 2


def test_the_command_runs_the_cells_as_a_study_does_and_the_same_command_continues_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    asked = (path, "--seeds", "2", "--set", "train.lr=0.1,0.2", "--out", tmp_path, "--jobs", "1", "--quiet")
    code, text = ran(*asked)
    assert code == 0
    assert "4 of 4 cells done" in text
    assert "lr: difference from 0.1" in " ".join(text.split())
    cells = json.loads((tmp_path / "small/study.json").read_text())["cells"]
    assert [cell["folder"] for cell in cells] == [f"runs/{lr}/seed-{s}" for lr in (0.1, 0.2) for s in (1, 2)]
    assert len(analysis.open_all((tmp_path / "small/runs").glob("*"))) == 4
    again = run_study_file(tmp_path / "small/study.toml", out=tmp_path / "again", jobs=1)
    repeated = json.loads((again.folder / "study.json").read_text())["cells"]
    assert [cell["digest"] for cell in repeated] == [cell["digest"] for cell in cells]
    code, text = ran(*asked)
    assert code == 0
    assert "4 of 4 cells are done already" in text
    assert "not part" not in text
    code, text = ran(*("train.lr=0.1,0.4" if text == "train.lr=0.1,0.2" else text for text in asked))
    assert code == 0
    assert "small: other cells there are not part of this study (2): their runs stay" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--live",), "--live: not with several seeds or values: cells run side by side"),
        (("--tensorboard", "boards"), r"--tensorboard: .* fedsim export tensorboard OUT/NAME/runs/\*$"),
        (("--profile",), "--profile: "),
        (("--ray-address", "auto"), "--ray-address: "),
        (("--workers", "2"), "--workers: .* --jobs"),
        (("--report",), "--report: .* fedsim report"),
        (("--resume",), "--resume: .* the same command continues"),
        (("--set", "seed=1,2"), "--set seed: .* --seeds"),
        (("--set", "name=a,b"), "--set name: expected one value"),
        (("--set", "arms.fedfv.train.lr=0.1,0.2"), "--set arms.fedfv.train.lr: expected one value"),
        (("--set", "train.lr=0.1,0.1"), "--set train.lr: expected different values, found '0.1' twice"),
        (("--set", "train.learning_rate=0.1,0.2"), r"learning_rate: unknown key: here it is train\.lr"),
        (("--seeds", "many"), "--seeds: expected a number of seeds"),
        (
            ("--seeds", "5-3"),
            "^--seeds: expected a range of 1 to 100,000 seeds, the least first, found '5-3'",
        ),
        (("--seeds", "1-9223372036854775807"), "^--seeds: expected a range of 1 to 100,000 seeds"),
        (("--seeds", "1,-3"), "seeds such as 3,7,9 or 6-10, found '1,-3'"),
        (("--seeds", ","), "seeds such as 3,7,9 or 6-10, found ','"),
        (("--seeds", "1-2-3"), "seeds such as 3,7,9 or 6-10, found '1-2-3'"),
        (("--seeds", "3-5,4"), "^--seeds: expected different seeds, found 4 more than once"),
        (("--seeds", "0"), "^--seeds: expected a number of seeds from 1 to 100,000, .* found 0"),
        (("--seeds", "3,3"), "^--seeds: expected different seeds, found 3 more than once"),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_reason(
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    seeds = () if "--seeds" in options else ("--seeds", "2")
    with pytest.raises(ConfigError, match=message):
        ran(written(tmp_path), *seeds, *options, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_jobs_are_for_studies(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--jobs: it is for several seeds or values"):
        ran(written(tmp_path), "--jobs", "2", "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("3", [1, 2, 3]),
        (" 7, ", [7]),
        ("3,7,9", [3, 7, 9]),
        ("6-8", [6, 7, 8]),
        ("1, 4 - 5, 3-3", [1, 4, 5, 3]),
    ],
)
def test_seeds_are_a_number_a_list_or_ranges(text: str, seeds: list[int]) -> None:
    assert seeds_of(text) == seeds


@pytest.mark.parametrize("before", [{"dropout": {"chance": 0.5, "law": "uniform"}}, {}])
def test_an_assignment_may_leave_other_keys_without_effect(tmp_path: Path, before: dict[str, Any]) -> None:
    """As for a single run; keys that had none before are refused."""
    path = written(tmp_path, **before)
    cells = cells_of(sweep(path, ["dropout.chance=0"], "2"), "s")
    assert [cell.config.dropout.law for cell in cells] == ["same", "same"]
    of_study = {
        "name": "s",
        "seeds": [1],
        "run": {k: v for k, v in read_toml(path).items() if k not in ("name", "seed")},
    }
    study = load_study(of_study, sets=["run.dropout.chance=0"])
    assert cells_of(study, "s")[0].config.dropout == cells[0].config.dropout
    again = load_study(study.resolved())
    assert [cell.config for cell in cells_of(again, "s")] == [cell.config for cell in cells_of(study, "s")]
    with pytest.raises(ConfigError, match=r"dropout\.within: it would have no effect"):
        cells_of(load_study(of_study, sets=["run.dropout.chance=0", "run.dropout.within=upload"]), "s")


def test_levels_lose_keys_that_an_assignment_leaves_without_effect(tmp_path: Path) -> None:
    run = {key: value for key, value in read_toml(written(tmp_path)).items() if key not in ("name", "seed")}
    levels = {"a": {"dropout": {"law": "uniform"}}, "b": {"dropout": {"leave": "bernoulli"}}, "c": {}}
    raw = {"name": "s", "seeds": [1], "run": run | {"dropout": {"chance": 0.5}}, "axes": {"loss": levels}}
    assert [cell.config.dropout.law for cell in cells_of(load_study(raw), "s")] == ["uniform", "same", "same"]
    study = load_study(raw, sets=["run.dropout.chance=0"])
    assert {cell.config.dropout.law for cell in cells_of(study, "s")} == {"same"}
    assert [cell.config.dropout.leave for cell in cells_of(study, "s")] == ["abort", "ignore", "abort"]


def study_file(folder: Path, axes: dict[str, Any], **run: Any) -> Path:
    """Write a study of the small run with these axes."""
    tables = small(stop={"steps": 2}).resolved()
    base = {key: value for key, value in tables.items() if key not in ("name", "seed")} | run
    path = folder / "study.toml"
    path.write_text(tomli_w.dumps({"name": "s", "seeds": 1, "run": base, "axes": axes}))
    return path


def test_an_assignment_leaves_other_levels_their_own_way_of_leaving(tmp_path: Path) -> None:
    axes = {"leave": {name: {"dropout": {"leave": name}} for name in ("abort", "bernoulli")}}
    path = study_file(tmp_path, axes, dropout={"chance": 0.3})
    cells = cells_of(load_study(path, sets=["run.dropout.chance=0"]), "s")
    assert [cell.config.dropout.leave for cell in cells] == ["abort", "ignore"]
    alone = {"loss": {level: {"dropout": {"chance": 0.3, "leave": "bernoulli"}} for level in ("low", "high")}}
    path = study_file(tmp_path, alone, dropout={})
    sets = [f"axes.loss.{level}.dropout.chance=0" for level in ("low", "high")]
    assert {cell.config.dropout.leave for cell in cells_of(load_study(path, sets=sets), "s")} == {"ignore"}


def test_an_option_without_effect_is_dropped_of_its_own_plugin_alone(tmp_path: Path) -> None:
    """`mu` has no effect in fedprox as released, and one in fedcka."""
    axes = {"method": {name: {"client": {"name": name, "mu": 0.7}} for name in ("fedprox", "fedcka")}}
    study = load_study(
        study_file(tmp_path, axes, client={}), sets=["axes.method.fedprox.client.form=released"]
    )
    fedprox, fedcka = (cell.config.client.options for cell in cells_of(study, "s"))
    assert fedprox == {"form": "released"}
    assert fedcka == {"mu": 0.7}


def test_levels_that_name_a_plugin_keep_what_all_share_and_what_is_set(tmp_path: Path) -> None:
    wrapped = {"name": "fedavg", "wrap": [{"name": "server_opt"}]}
    path = written(tmp_path, algorithm=wrapped)
    study = sweep(path, ["algorithm.name=fedavg,fedfv", "algorithm.memory=1min"])
    for cell in cells_of(study, "s"):
        assert [wrapper.name for wrapper in cell.config.algorithm.wrap] == ["server_opt"]
    assert cell.config.algorithm.memory == 60 * US  # of fedfv, the last: fedavg remembers nothing
    study = sweep(written(tmp_path), ["algorithm.name=fedfv,fedfv_released", "algorithm.alpha=0.5"])
    assert [cell.config.algorithm.options["alpha"] for cell in cells_of(study, "s")] == [0.5, 0.5]
    with pytest.raises(ConfigError, match="rule 'fedlf' has no option 'alpha'"):
        cells_of(sweep(written(tmp_path), ["algorithm.name=fedfv,fedlf", "algorithm.alpha=0.5"]), "s")
    study = sweep(written(tmp_path, partition={"name": "iid"}), ["task.name=digits,synthetic"])
    assert [cell.config.task.clients for cell in cells_of(study, "s")] == [12, 12]


def test_levels_of_another_metric_or_model_lose_what_was_chosen_for_the_first(tmp_path: Path) -> None:
    path = written(tmp_path, stop={"steps": 2, "metric": "mean_percent", "rising": True})
    cells = cells_of(sweep(path, ["stop.patience=3", "stop.metric=mean_percent,std_percent"]), "s")
    assert [cell.config.stop.rising for cell in cells] == [True, False]
    both = ["stop.patience=3", "stop.metric=mean_percent,std_percent", "stop.rising=true,false"]
    assert [cell.config.stop.rising for cell in cells_of(sweep(path, both), "s")] == [True, False] * 2
    path = written(tmp_path, train={"mode": "dense", "lr": 0.1})
    cells = cells_of(sweep(path, ["model.name=softmax,cnn", "task.name=digits"]), "s")
    assert {cell.config.model.name: cell.config.train.mode for cell in cells if cell.config.model}[
        "cnn"
    ] == "auto"


def test_a_plugin_whose_table_has_the_name_of_a_column_is_an_axis(tmp_path: Path) -> None:
    study = sweep(written(tmp_path), ["client.name=plain,fedprox"])
    assert list(study.axes) == ["client_name"]


def test_an_axis_level_that_names_another_plugin_drops_the_options_of_the_first(tmp_path: Path) -> None:
    axes = {
        "rule": {"a": {"algorithm": {"name": "fedfv", "alpha": 0.2}}, "b": {"algorithm": {"name": "fedavg"}}}
    }
    study = load_study(study_file(tmp_path, axes), sets=["axes.rule.a.algorithm.name=fedlf"])
    assert [cell.config.algorithm.name for cell in cells_of(study, "s")] == ["fedlf", "fedavg"]


def test_a_level_without_a_name_has_options_of_the_plug_in_of_the_study(tmp_path: Path) -> None:
    axes = {"weighting": {"uniform": {"algorithm": {"weighting": "uniform"}}}}
    path = study_file(tmp_path, axes, algorithm={"name": "fedexp"})
    (cell,) = cells_of(load_study(path, sets=["axes.weighting.uniform.algorithm.name=fedavg"]), "s")
    assert (cell.config.algorithm.name, cell.config.algorithm.options) == ("fedavg", {})


def test_seeds_are_given_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--set seed=9: no effect, as --seeds gives the seeds"):
        sweep(written(tmp_path), ["seed=9"], "2")
    with pytest.raises(ConfigError, match="--set seeds=5: no effect, as --seeds gives the seeds"):
        load_study(study_file(tmp_path, {}), sets=["seeds=5"], seeds="2")


def test_a_level_with_a_point_is_set_in_quotes(tmp_path: Path) -> None:
    axes = {"lr": {"0.05": {"train": {"lr": 0.05}}, "0.1": {"train": {"lr": 0.1}}}}
    path = study_file(tmp_path, axes)
    with pytest.raises(ConfigError, match=r'set it there, such as axes.lr."0.05".train.lr=0.3'):
        load_study(path, sets=["run.train.lr=0.3"])
    study = load_study(path, sets=[' axes.lr."0.05".train.lr=0.3'])
    assert [cell.config.train.lr for cell in cells_of(study, "s")] == [0.3, 0.1]
