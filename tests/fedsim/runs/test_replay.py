"""Another configuration in exactly the world of a finished run, with the same participation if wanted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim import analysis
from fedsim.cli.main import main
from fedsim.common.errors import ConfigError, FolderError, RunError
from fedsim.common.units import US as S
from fedsim.config.load import changed, load_config
from fedsim.config.run import RunConfig
from fedsim.plugins import build
from fedsim.runs.build import prepare
from fedsim.runs.fork import At
from fedsim.runs.replay import compare_participation, replay_config
from fedsim.worlds.trace import Trace, read_trace
from forked_runs import branch
from interrupted_runs import stopped_at
from small import run, small
from views import choose, view

EVENTFUL: dict[str, Any] = {
    "cost": {"payload": "5 MB", "compute_scale": 10, "jitter": {"compute": 0.4, "uplink": 0.3}},
    "dropout": {"chance": 0.2, "notice": "20s", "retries": 1, "replace": True, "leave": "pause_resume"},
    "pacing": {"preset": "deadline", "clients": 5, "deadline": "2min", "late": "history", "minimum": 2},
    "train": {"batch_size": 20, "epochs": 2},
}
PARENTS: dict[str, dict[str, Any]] = {
    "sync": {},
    "fedbuff": {"pacing": {"preset": "fedbuff", "concurrency": 5, "buffer": 3}},
    "fedasync": {
        "pacing": {"preset": "fedasync", "concurrency": 4},
        "dropout": {"chance": 0.3, "retries": 2},
    },
    "eventful": EVENTFUL,
    "few at a time": {"selection": {"name": "weighted", "replacement": True}},
    "diverse": {"selection": {"name": "divfl"}, "algorithm": {"name": "mifa"}},
    "sampled": {"selection": {"name": "optimal_sampling"}, "memory": {"history": "bfloat16"}},
}


def run_parent(name: str, out: Path) -> Path:
    return run(small(stop={"steps": 8}, **PARENTS[name]), out).folder


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One finished run of each kind; tests that spoil a run copy it first."""
    return {name: run_parent(name, tmp_path_factory.mktemp("parent")) for name in PARENTS}


def test_another_rule_has_the_memory_that_the_parent_asked_for(tmp_path: Path) -> None:
    """The parent's rule needed none of its budget, so that its file has the plain storage."""
    parent = run(small(memory={"budget": "20 kB"}, stop={"steps": 3}), tmp_path / "parent").folder
    config = replay_config(parent, ["algorithm.name=mifa"])
    assert config.memory.budget == 20_000
    assert replay_config(parent, ["train.lr=0.5"]).memory.budget is None
    assert replay_config(parent, ["algorithm.name=mifa", "memory.history=float32"]).memory.budget is None
    child = branch(parent, At(step=2), "algorithm.name=mifa", out=tmp_path / "fork")
    assert load_config(child.folder / "config.resolved.toml")[0].memory == prepare(config).config.memory


@pytest.fixture
def parent(parents: dict[str, Path]) -> Path:
    return parents["sync"]


def manifest(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return content


def replay(parent: Path, out: Path, *sets: str, same: bool = True) -> Path:
    return run(replay_config(parent, sets, same_participation=same), out).folder


def call(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), " ".join(printed.out.split()), " ".join(printed.err.split())


@pytest.mark.parametrize("kind", PARENTS)
def test_the_same_rule_with_the_same_participation_gives_the_same_digest(
    kind: str, parents: dict[str, Path], tmp_path: Path
) -> None:
    child = replay(parents[kind], tmp_path)
    assert manifest(child)["digest"] == manifest(parents[kind])["digest"]
    found = compare_participation(parents[kind], child)
    assert found.difference == ""
    assert found.jobs == sum(manifest(child)["jobs"].values())


@pytest.mark.parametrize("kind", PARENTS)
def test_another_rule_meets_the_same_participation_in_the_same_world(
    kind: str, parents: dict[str, Path], tmp_path: Path
) -> None:
    rule = "mifa" if kind == "eventful" else "fedavg"
    child = replay(parents[kind], tmp_path, f"algorithm.name={rule}")
    assert compare_participation(parents[kind], child).difference == ""
    assert read_trace(child / "world.parquet") == read_trace(parents[kind] / "world.parquet")
    assert manifest(child)["digest"] != manifest(parents[kind])["digest"]
    timing = ["job", "client", "status", "step", "download_us", "compute_us", "end_us", "share", "attempt"]
    ours, theirs = (pq.read_table(f / "jobs.parquet", columns=timing) for f in (child, parents[kind]))
    assert ours.equals(theirs)
    stated = [pq.read_table(f / "jobs.parquet")["inclusion"].to_numpy() for f in (child, parents[kind])]
    np.testing.assert_array_equal(*stated)


def test_the_eventful_parent_has_what_makes_a_replay_hard(parents: dict[str, Path]) -> None:
    jobs = analysis.open_run(parents["eventful"]).frame("jobs")
    assert {"aggregated", "remembered", "lost"} <= set(jobs.status)
    assert jobs.attempt.max() == 1


def test_without_the_same_participation_the_world_is_the_same_and_the_rest_is_run_anew(
    parent: Path, tmp_path: Path
) -> None:
    assert manifest(replay(parent, tmp_path / "a", same=False))["digest"] == manifest(parent)["digest"]
    child = replay(parent, tmp_path / "b", "selection.name=fastest_first", same=False)
    assert read_trace(child / "world.parquet") == read_trace(parent / "world.parquet")
    found = compare_participation(parent, child)
    assert "the parent" in found.difference
    longer = replay(parent, tmp_path / "c", "stop.steps=9", same=False)
    assert f"the parent had {len(pq.read_table(parent / 'jobs.parquet'))}" in (
        compare_participation(parent, longer).difference
    )


def test_a_replay_does_not_take_the_place_of_its_parent(parent: Path, tmp_path: Path) -> None:
    copy = tmp_path / "small"
    shutil.copytree(parent, copy)
    with pytest.raises(ConfigError, match="small is the parent itself: choose another name"):
        run(replay_config(copy, [], name="small"), tmp_path, force=True)
    assert manifest(copy) == manifest(parent)


def test_a_replay_of_a_replay_is_one_of_its_parent(parent: Path, tmp_path: Path) -> None:
    child = replay(parent, tmp_path, "algorithm.name=fedavg")
    grandchild = replay(child, tmp_path, "algorithm.name=fedlf")
    assert manifest(grandchild)["digest"] == manifest(parent)["digest"]
    assert manifest(grandchild)["parent"]["run"] == str(child)


def test_the_manifest_names_the_parent_and_what_was_changed(parent: Path, tmp_path: Path) -> None:
    child = replay(parent, tmp_path, "algorithm.name=fedavg", "train.lr=0.2")
    assert manifest(parent)["parent"] is None
    assert manifest(child)["parent"] == {
        "run": str(parent),
        "digest": manifest(parent)["digest"],
        "same_participation": True,
        "changes": ["algorithm.name=fedavg", "train.lr=0.2"],
    }
    assert manifest(child)["name"] == "small-replay"
    assert replay_config(parent, [], name="other").name == "other"


def test_jobs_that_take_no_time_are_told_apart_by_their_step(tmp_path: Path) -> None:
    """Several steps at one instant, at each of which the selector chose fewer than it might have."""
    world = tmp_path / "still.parquet"
    Trace.of([*range(12)], [0] * 12, [10**9] * 12, "online", clients=12, horizon_us=10**9).write(world)
    drawn_twice = {"name": "weighted", "replacement": True}
    parent = run(small(world={"trace": str(world)}, selection=drawn_twice), tmp_path).folder
    jobs = pq.read_table(parent / "jobs.parquet")
    assert len(jobs) < 8 * 4, "a client that is drawn twice gets one job"
    child = replay(parent, tmp_path)
    assert manifest(child)["digest"] == manifest(parent)["digest"]


# What is refused


def spoilt(parent: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(parent, tmp_path / "spoilt"))


def test_what_is_no_finished_run_is_refused(parent: Path, tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"there is no run folder .*nowhere"):
        replay_config(tmp_path / "nowhere", [])
    (tmp_path / "bare").mkdir()
    with pytest.raises(ConfigError, match=r"bare: not a finished run: manifest\.json"):
        replay_config(tmp_path / "bare", [])
    killed = stopped_at(2, small(), tmp_path)
    with pytest.raises(
        ConfigError, match=r"jobs\.parquet is missing; finish it with: fedsim resume .*/small$"
    ):
        replay_config(killed, [])
    folder = spoilt(parent, tmp_path)
    for status in ("interrupted", "running"):
        (folder / "manifest.json").write_text(json.dumps(manifest(parent) | {"status": status}))
        with pytest.raises(
            ConfigError, match=f"its status is '{status}'; finish it with: fedsim resume .*spoilt"
        ):
            replay_config(folder, [])
    (folder / "manifest.json").write_text((parent / "manifest.json").read_text()[:200])
    with pytest.raises(FolderError, match=r"manifest\.json: cannot be read"):
        replay_config(folder, [])
    (folder / "world.parquet").unlink()
    with pytest.raises(ConfigError, match=r"not a finished run: world\.parquet is missing$"):
        replay_config(folder, [])


@pytest.mark.parametrize(
    "change", ["world.unknown=online", "world.scenario=always_on", "world={scenario='always_on'}"]
)
def test_the_world_cannot_be_changed(change: str, parent: Path) -> None:
    with pytest.raises(ConfigError, match="the world is that of the parent"):
        replay_config(parent, [change])


def test_another_selector_contradicts_the_same_participation(parent: Path) -> None:
    with pytest.raises(ConfigError, match=r"same participation .* 'uniform'"):
        replay_config(parent, ["selection.name=uniform"], same_participation=True)


def test_unknown_keys_are_named_with_the_parent(parent: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"small with changes: train\.epoch: unknown key; did you mean 'epochs'"
    ):
        replay_config(parent, ["train.epoch=2"])


@pytest.mark.parametrize(
    "changes",
    [
        ["pacing.clients=3"],
        ["train.epochs=3"],
        ["cost.compute_scale=30"],
        ["pacing={preset='fedbuff', concurrency=4, buffer=2}"],
    ],
    ids=str,
)
def test_another_timing_is_an_error_not_a_substitute(
    changes: list[str], parent: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=r"jobs\.parquet: client \d+ was given a job at .*timing differs"):
        replay(parent, tmp_path, *changes)
    assert manifest(tmp_path / "small-replay")["status"] == "failed"


@pytest.mark.parametrize("kind", ["sync", "fedasync"])
def test_a_record_cannot_be_continued(kind: str, parents: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"the recorded run ended at .*, step \d+, already.*goes on for longer"
    ):
        replay(parents[kind], tmp_path, "stop.steps=30")


@pytest.mark.parametrize("kind", PARENTS)
def test_a_record_without_its_manifest_ends_with_its_last_job(
    kind: str, parents: dict[str, Path], tmp_path: Path
) -> None:
    jobs = Path(shutil.copy(parents[kind] / "jobs.parquet", tmp_path / "jobs.parquet"))
    given = {**PARENTS[kind], "selection": {"name": "replayed", "jobs": str(jobs)}}
    same = small(stop={"steps": 8}, **given)
    assert run(same, tmp_path / "a").digest == manifest(parents[kind])["digest"]
    with pytest.raises(RunError, match="the recorded run ended"):
        run(small(stop={"steps": 30}, **given), tmp_path / "b")


@pytest.mark.parametrize(
    ("said", "ends_s"),
    [
        (None, 9),
        ('{"virtual_us": 12000000}', 12),
        ('{"virtual_us": 8000000}', 9),  # the last job ended later
        ('{"virtual_us": null}', 9),
        ("{}", 9),
        ("[]", 9),
        ("no manifest", 9),
    ],
)
def test_a_record_goes_on_until_its_manifest_or_its_last_job_ends(
    said: str | None, ends_s: int, tmp_path: Path
) -> None:
    """The job that ends last is not the one that was given last."""
    rows = {
        "job": [0, 1],
        "client": [3, 1],
        "version": [0, 0],
        "dispatch_us": [0, S],
        "end_us": [9 * S, 5 * S],
    }
    pq.write_table(pa.table({**rows, "attempt": [0, 0], "inclusion": [0.5, 1.0]}), tmp_path / "jobs.parquet")
    if said is not None:
        (tmp_path / "manifest.json").write_text(said)
    replayed = build("selector", "replayed", {}, jobs=tmp_path / "jobs.parquet")
    first, state = choose(replayed, view(now_us=0), 1, 0)
    second, state = choose(replayed, view(now_us=S), 1, 0, state)
    assert (first, second) == ([3], [1])
    assert choose(replayed, view(now_us=ends_s * S, step=1), 1, 0, state)[0] == []
    with pytest.raises(RunError, match=f"the recorded run ended at {ends_s}.000 s, and this run is at"):
        choose(replayed, view(now_us=ends_s * S + 1, step=1), 1, 0, state)


def test_the_first_difference_of_two_runs_is_named(parent: Path, tmp_path: Path) -> None:
    folder = spoilt(parent, tmp_path)
    jobs = pq.read_table(folder / "jobs.parquet")
    moved = jobs["end_us"].to_pylist()
    moved[3] += 1
    at = jobs.schema.get_field_index("end_us")
    pq.write_table(jobs.set_column(at, jobs.schema.field(at), [moved]), folder / "jobs.parquet")
    number = jobs["job"][3].as_py()
    said = f"job {number}: end_us is {moved[3]}, the parent's is {moved[3] - 1}"
    assert compare_participation(parent, folder).difference == said


# The command line


def test_the_command_compares_with_the_parent(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--out", tmp_path, "--workers", 0, "--quiet")
    change = ("--set", "algorithm.name=fedavg")
    code, out, err = call("replay", parent, "--same-participation", *change, *where, capsys=capsys)
    assert code == 0, err
    assert "small-replay against small" in out
    assert f"same participation: {sum(manifest(parent)['jobs'].values())} jobs" in out
    code, out, err = call("replay", parent, *change, *where, capsys=capsys)
    assert (code, f"if it is unfinished, with fedsim resume {tmp_path / 'small-replay'};" in err) == (2, True)
    code, out, _ = call("replay", parent, "--name", "again", *where, capsys=capsys)
    assert code == 0
    assert "same participation" not in out
    assert manifest(tmp_path / "again")["digest"] == manifest(parent)["digest"]
    even = run(small(name="even", stop={"steps": 2}, partition={"name": "iid"}), tmp_path).folder
    other = ("--same-participation", "--set", "seed=4", "--name", "other")
    code, out, err = call("replay", even, *other, *where, capsys=capsys)
    assert code == 0, err
    assert "same participation: " in out
    assert f"not compared: {even} and {tmp_path / 'other'} cannot be compared client by client" in out


def test_the_command_says_why_it_refuses(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--out", tmp_path / "runs", "--workers", 0, "--quiet")
    code, _, err = call("replay", tmp_path, *where, capsys=capsys)
    assert (code, "not a finished run" in err) == (2, True)
    code, _, err = call("replay", parent, "--set", "world.unknown=online", *where, capsys=capsys)
    assert (code, "the world is that of the parent" in err) == (2, True)
    assert not (tmp_path / "runs").exists()
    other = ("--same-participation", "--set", "train.epochs=3")
    code, _, err = call("replay", parent, *other, *where, capsys=capsys)
    assert (code, "timing differs" in err) == (1, True)


# Changing a plug-in by --set drops the options of the one before


def raw() -> dict[str, Any]:
    config: RunConfig = small(
        algorithm={"name": "fedlf", "level": "model", "rows": "current"},
        pacing={"preset": "fedbuff", "concurrency": 4, "buffer": 2},
    )
    return {"algorithm": config.resolved()["algorithm"]}


def test_another_rule_drops_the_options_of_the_one_before_and_keeps_what_all_share() -> None:
    assert raw()["algorithm"]["level"] == "model"
    found = changed(raw(), ["algorithm.name=fedavg", "algorithm.weighting='uniform'"])["algorithm"]
    assert found == {"name": "fedavg", "rows": "current", "memory": 0.0, "weighting": "uniform"}


def test_the_same_rule_keeps_its_options_in_whatever_order_they_are_given() -> None:
    assert changed(raw(), ["algorithm.name=fedlf"]) == raw()
    order = ["algorithm.weighting='uniform'", "algorithm.name=fedavg"]
    assert changed(raw(), order)["algorithm"]["weighting"] == "uniform"


def test_run_takes_another_rule_by_set(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ("--set", "algorithm.name=fedavg", "--set", "stop.steps=1")
    where = ("--out", tmp_path, "--workers", 0, "--quiet")
    code, _, err = call("run", parent / "config.resolved.toml", *sets, *where, capsys=capsys)
    assert code == 0, err
    assert analysis.open_run(tmp_path / "small").config["algorithm"]["name"] == "fedavg"
