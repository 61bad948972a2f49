"""`[seeds]`: what each seed decides, and that nothing else depends on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsim import analysis
from fedsim.analysis.statistics.participation import label_counts
from fedsim.common.errors import ConfigError
from fedsim.common.files import from_json, from_toml
from fedsim.config.run import RunConfig
from fedsim.invariants import check
from fedsim.runs.build import prepare
from fedsim.runs.fork import At, fork
from fedsim.runs.inputs import InputCache
from fedsim.runs.plan.plan import plan_run
from fedsim.runs.replay import replay_config
from fedsim.runs.spec import RunSpec
from fedsim.runs.verify import verify
from fedsim.training.attack import attacked
from fedsim.training.job import Cohort
from small import run, small

ROTATED = {"what": "availability", "to": "label", "labels": [0], "rotate": True, "strength": 0.8}
EVERYTHING: dict[str, Any] = {
    "task": {"name": "digits", "clients": 12, "unseen": 2},
    "cost": {
        "payload": "5 MB",
        "compute_scale": 10,
        "jitter": {"compute": 0.5},
        "completeness": {"mode": "epochs", "chance": 0.5, "low": 1, "high": 2},
    },
    "train": {"batch_size": 10, "epochs": 2, "lr": 0.2},
    "client": {"name": "fedprox"},
    "dropout": {"chance": 0.3},
    "adversary": [
        {"name": "drop", "share": 0.3, "chance": 0.5},
        {"name": "gaussian_noise", "share": 0.3},
    ],
    "algorithm": {"name": "fedfv", "order": "random"},
    "evaluate": {"every_steps": 3, "clients": 5},
    "audit": {"every": 4, "clients": 4},
}
"""A run that draws whatever a run can draw."""
SEEDS = {"data": 21, "world": 22, "train": 23}


def drawing(seeds: dict[str, int], **changes: Any) -> RunConfig:
    return small(**(EVERYTHING | {"seed": 3, "seeds": seeds} | changes))


def _lost(spec: RunSpec) -> Any:
    who, nth = np.arange(10).repeat(20), np.tile(np.arange(20), 10)
    return spec.plan.costs.of(who, nth, np.ones(len(who))).lost_at.tolist()


def _shares(spec: RunSpec) -> Any:
    return spec.plan.costs.shares(np.arange(10).repeat(9), np.tile(np.arange(9), 10)).tolist()


def _jittered(spec: RunSpec) -> Any:
    jitter, who = spec.plan.costs.jitter, np.arange(10)
    return [np.asarray(part).tolist() for part in jitter.slowness(spec.plan.costs.seed, who, who)]


def _struck(spec: RunSpec) -> Any:
    many = np.arange(400)
    cohort = Cohort(many, many % 10, many // 10, many, np.ones(400), many)
    assert spec.plan.droppers is not None
    return spec.plan.droppers.drop(cohort).tolist()


DRAWN: dict[str, tuple[str, Callable[[RunSpec], Any]]] = {
    "samples": ("data", lambda s: s.data.train.indices.tolist()),
    "unseen clients": ("data", lambda s: s.data.unseen.numbers.tolist() if s.data.unseen else None),
    "world": ("world", lambda s: s.trace.table.to_pydict()),
    "losses": ("world", _lost),
    "jitter": ("world", _jittered),
    "completeness": ("world", _shares),
    "attackers": ("world", lambda s: [a.clients for a in s.bench.adversaries]),
    "attacked jobs": ("world", _struck),
    "noise of attacks": ("world", lambda s: s.bench.attack_seed),
    "start parameters": ("train", lambda s: s.initial().tolist()),
    "minibatches": ("train", lambda s: s.bench.seed),
    "choices of the selector": ("train", lambda s: s.plan.seed),
    "rule": ("train", lambda s: s.server.seed),
    "evaluated clients": ("train", lambda s: s.bench.some),
    "audited clients": ("train", lambda s: s.plan.audit.seed if s.plan.audit else None),
}
"""What a run draws, the part of `[seeds]` that decides it, and how to read it from a run that is built."""


@pytest.fixture(scope="module")
def specs() -> dict[str, RunSpec]:
    """Return the run with SEEDS, and those with one of them replaced, by its name."""
    first = {"": prepare(drawing(SEEDS))}
    return first | {part: prepare(drawing(SEEDS | {part: 40})) for part in SEEDS}


@pytest.mark.parametrize("what", DRAWN)
def test_each_draw_depends_on_the_seed_of_its_part_alone(specs: dict[str, RunSpec], what: str) -> None:
    part, read = DRAWN[what]
    first = read(specs[""])
    assert first is not None
    assert [other for other in SEEDS if read(specs[other]) != first] == [part]


@pytest.mark.parametrize("part", SEEDS)
def test_a_part_without_a_seed_has_that_of_the_run(part: str) -> None:
    config = drawing({part: 9})
    assert [config.seed_of(each) for each in SEEDS] == [9 if each == part else 3 for each in SEEDS]  # type: ignore[arg-type]


def test_the_seed_of_the_data_rotates_labels_and_that_of_the_world_ties_clients() -> None:
    def source(**seeds: int) -> tuple[list[int], str]:
        spec = prepare(drawing(SEEDS | seeds, world=small().world.model_dump() | {"confound": ROTATED}))
        (step,) = (step for step in from_json(spec.trace.source)["edits"] if "confound" in step)
        return step["confound"]["labels"], step["confound"]["seed"]

    assert source() == ([1], 22)
    assert source(data=24) == ([4], 22)
    assert source(world=25) == ([1], 25)


def test_the_seed_of_the_world_table_decides_the_scenario_alone() -> None:
    world = small().world.model_dump(exclude_none=True) | {"seed": 5}
    own, other = prepare(drawing(SEEDS, world=world)), prepare(drawing(SEEDS | {"world": 6}, world=world))
    assert own.trace.digest() == other.trace.digest() == prepare(drawing({"world": 5})).trace.digest()
    assert _lost(own) != _lost(other)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a run with seed 5, and one with another seed whose parts all have 5."""
    out = tmp_path_factory.mktemp("pair")
    keep = {"checkpoint": {"every_steps": 3, "keep": "all"}}
    one = run(small(**EVERYTHING | keep, seed=5, name="one"), out)
    return one.folder, run(drawing(dict.fromkeys(SEEDS, 5), **keep, name="parts"), out).folder


def test_a_run_whose_parts_all_have_a_seed_is_the_run_of_that_seed(pair: tuple[Path, Path]) -> None:
    one, parts = map(analysis.open_run, pair)
    assert one.manifest["digest"] == parts.manifest["digest"]
    assert check(parts.folder).violations == check(one.folder).violations == ()
    assert (label_counts(one) == label_counts(parts)).all()
    pd.testing.assert_frame_equal(analysis.selection_regret(one), analysis.selection_regret(parts))
    assert plan_run(drawing(dict.fromkeys(SEEDS, 5))).jobs == parts.manifest["jobs"]


def test_seeds_survive_verify_replay_and_fork(pair: tuple[Path, Path], tmp_path: Path) -> None:
    _, parts = pair
    resolved = from_toml((parts / "config.resolved.toml").read_text())
    assert resolved["seeds"] == dict.fromkeys(SEEDS, 5)
    assert "seeds" not in from_toml((pair[0] / "config.resolved.toml").read_text())
    assert {verdict.difference for verdict in verify(parts, workers=0)} == {""}
    assert replay_config(parts, []).seeds == drawing(dict.fromkeys(SEEDS, 5)).seeds
    forked = fork(parts, At(step=3), out=tmp_path, workers=0)
    assert forked.digest == analysis.open_run(parts).manifest["digest"]
    with pytest.raises(ConfigError, match="fork: seeds: it cannot change"):
        fork(parts, At(step=3), sets=["seeds.train=6"], out=tmp_path / "other", workers=0)


def test_the_seed_of_the_world_decides_which_jobs_are_attacked(tmp_path: Path) -> None:
    attack = {"name": "nan", "share": 0.6, "chance": 0.5}
    config = small(seeds={"world": 9}, adversary=attack)
    jobs = analysis.open_run(run(config, tmp_path).folder).frame("jobs")
    arrived = jobs[jobs.status.isin(["aggregated", "nonfinite"])]
    struck = attacked(config.adversaries(), 9, arrived)["nan"]
    assert struck.any()
    assert not struck.all()
    assert ((arrived.status == "nonfinite") == struck).all()


def test_inputs_are_kept_as_far_as_their_seeds_are_equal() -> None:
    cache = InputCache()
    first = cache.inputs(drawing(SEEDS))
    assert cache.inputs(drawing(SEEDS | {"train": 1}, seed=8)) is first
    other_world = cache.inputs(drawing(SEEDS | {"world": 1}))
    assert other_world.data is first.data
    assert other_world.trace.digest() != first.trace.digest()
    other_data = cache.inputs(drawing(SEEDS | {"world": 1, "data": 1}))
    assert other_data.data is not first.data


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ({"datas": 1}, "did you mean 'data'"),
        ({"data": -1}, "seeds.data"),
        (5, r"seeds: expected a table, such as seeds.world = 3, found 5; .* --seeds 5"),
    ],
)
def test_bad_seeds_are_named(seeds: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drawing(seeds)
