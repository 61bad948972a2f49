"""Whole runs in this process: folders, manifests, and what happens when something goes wrong."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from fedsim import analysis
from fedsim.common.errors import ConfigError, DataError, RunError, SomeFailed, TraceError
from fedsim.common.files import write_json
from fedsim.config.errors import read_toml
from fedsim.records import checkpoint
from fedsim.records.existing_run import run_in
from fedsim.records.manifest import read_manifest
from fedsim.records.recorder import Recorder
from fedsim.records.run_folder import lock
from fedsim.runs import simulate as simulation
from fedsim.runs.build import prepare
from fedsim.runs.fork import At, fork
from fedsim.runs.memory_estimate import Footprint
from fedsim.runs.progress import Progress
from fedsim.runs.resume import resume
from fedsim.runs.simulate import simulate
from fedsim.worlds.trace import Trace
from small import run, small


def manifest(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return content


def test_a_run_folder_holds_everything(tmp_path: Path) -> None:
    result = run(small(), tmp_path)
    assert result.folder == tmp_path / "small"
    names = {p.name for p in result.folder.iterdir()}
    assert names == {
        "config.resolved.toml",
        "manifest.json",
        "jobs.parquet",
        "steps.parquet",
        "evals.parquet",
        "model.safetensors",
        "world.parquet",
        "clients.parquet",
    }
    found = manifest(result.folder)
    assert found["status"] == "done"
    assert found["digest"] == result.digest
    assert found["ended_by"] == "steps"
    assert found["steps"] == 8
    assert found["versions"]["torch"]
    assert found["memory"]["predicted_bytes"]["total"] > 0
    assert found["memory"]["peak_bytes"] > 0
    parts = {k: v for k, v in found["wall_s"].items() if k != "total"}
    assert sum(parts.values()) == pytest.approx(found["wall_s"]["total"], abs=0.01)
    server = found["server_wall_s"]
    assert server.keys() == {"gram", "solve", "combine", "diagnose"}
    assert 0 < sum(server.values()) < found["wall_s"]["total"]
    params = safetensors.torch.load_file(result.folder / "model.safetensors")["params"]
    assert params.shape == (64 * 8 + 8 + 8 * 10 + 10,)


@pytest.mark.parametrize("unseen", [0, 3])
def test_a_run_folder_has_the_labels_of_each_client(unseen: int, tmp_path: Path) -> None:
    config = small(
        task={"name": "digits", "clients": 12, "unseen": unseen},
        partition={"name": "dirichlet", "alpha": 0.3},
    )
    table = pq.read_table(run(config, tmp_path).folder / "clients.parquet").to_pydict()
    data = prepare(config).data
    assert table["client"] == list(range(12 - unseen))
    for client, n, of_labels in zip(*(table[name] for name in table), strict=True):
        assert of_labels == [(data.y[data.train.rows(client)] == label).sum() for label in range(10)]
        assert n == len(data.train.rows(client))


def test_tables_agree_with_each_other(tmp_path: Path) -> None:
    opened = analysis.open_run(run(small(stop={"steps": 30}), tmp_path).folder)
    jobs, steps, evals = (opened.frame(t) for t in ("jobs", "steps", "evals"))
    used = jobs[jobs.status == "aggregated"]
    assert used.groupby("step").size().reindex(steps.step, fill_value=0).tolist() == steps.updates.tolist()
    assert jobs.status.value_counts().to_dict() == opened.manifest["jobs"]
    assert (jobs.status == "lost").sum() >= steps.lost.sum()
    assert (jobs.status == "lost").sum() > 0, "this world is meant to lose some"
    assert set(jobs[jobs.status == "lost"].phase) <= {"download", "compute", "upload"}
    assert jobs.job.is_unique
    assert (jobs.end_us >= jobs.dispatch_us).all()
    assert used.loss_before.notna().all()
    assert steps.time_us.is_monotonic_increasing
    assert sorted(evals.step.unique()) == [*range(0, 30, 3), 30]
    assert (evals.accuracy == evals.correct / evals.n).all()
    assert (evals.groupby("step").size() == 12).all()


def test_an_existing_run_is_kept_unless_forced(tmp_path: Path) -> None:
    first = run(small(), tmp_path)
    with pytest.raises(RunError, match="--force"):
        run(small(seed=9), tmp_path)
    assert manifest(first.folder)["digest"] == first.digest
    assert run(small(seed=9), tmp_path, force=True).digest != first.digest


def test_a_folder_that_is_no_run_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="not a run folder"):
        run(small(), tmp_path, force=True)
    assert (tmp_path / "small" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("force", [False, True])
def test_a_file_in_the_place_of_the_folder_is_left_alone(tmp_path: Path, force: bool) -> None:
    (tmp_path / "small").write_text("mine")
    with pytest.raises(RunError, match="small exists and is not a run folder"):
        run(small(), tmp_path, force=force)
    assert (tmp_path / "small").read_text() == "mine"


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(RunError, match="cannot be written"), lock(tmp_path):
        pass


def test_updates_that_are_not_finite_are_left_out_and_counted(tmp_path: Path) -> None:
    result = run(small(train={"lr": 1e30, "batch_size": 5}, stop={"steps": 3}), tmp_path)
    opened = analysis.open_run(result.folder)
    assert set(opened.frame("steps").status) == {"empty"}
    assert opened.manifest["jobs"]["nonfinite"] == opened.frame("steps").nonfinite.sum() > 0


def test_rounds_without_updates_are_named(tmp_path: Path) -> None:
    pacing = {"preset": "deadline", "clients": 4, "deadline": "1s"}
    opened = analysis.open_run(run(small(pacing=pacing, stop={"steps": 4}), tmp_path).folder)
    steps = opened.frame("steps")
    assert steps.status.tolist() == ["empty"] * 4
    assert steps.cause.tolist() == ["deadline"] * 4
    assert opened.frame("jobs").loss_train.isna().all(), "what cannot be used is not trained"


def test_an_interrupt_leaves_a_readable_folder(tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.run_state.step == 5:
            raise KeyboardInterrupt

    result = run(
        small(pacing={"preset": "fedbuff", "concurrency": 5, "buffer": 2}), tmp_path, watch=interrupt
    )
    assert result.status == "interrupted"
    opened = analysis.open_run(result.folder)
    assert opened.manifest["status"] == "interrupted"
    assert opened.manifest["digest"] is None
    assert len(opened.steps) == 5
    assert "unfinished" in opened.manifest["jobs"]


def test_an_interrupt_while_the_folder_is_made_leaves_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = checkpoint.remove_after

    def with_ctrl_c(*where: Any, **what: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        removed(*where, **what)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "remove_after", with_ctrl_c)
        found = simulate(small(), out=tmp_path / "runs", workers=0)[0]
    assert found.status == read_manifest(tmp_path / "runs/small")["status"] == "interrupted"
    whole = simulate(small(), out=tmp_path / "whole", workers=0)[0]
    assert resume(tmp_path / "runs/small", workers=0).digest == whole.digest


def test_an_interrupt_before_the_first_instant_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "_write_arms", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        simulate(small(), out=tmp_path, workers=0)
    assert read_manifest(tmp_path / "small")["status"] == "interrupted"


def test_an_interrupt_skips_the_other_runs(tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    results = simulate([small(), small(name="other")], out=tmp_path, workers=0, watch=interrupt)
    assert [r.status for r in results] == ["interrupted"]
    assert not (tmp_path / "other").exists()


def test_a_failure_leaves_a_readable_folder_and_its_reason(tmp_path: Path) -> None:
    def fail(progress: Progress) -> None:
        raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        run(small(), tmp_path, watch=fail)
    opened = analysis.open_run(tmp_path / "small")
    assert opened.manifest["status"] == "failed"
    assert "the disk is on fire" in opened.manifest["error"]
    assert len(opened.steps) == 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"partition": None}, ConfigError, r"give \[partition\]"),
        ({"partition": {"name": "pathological", "classes": 11}}, DataError, "11"),
        ({"task": {"name": "digits", "clients": 1500}}, DataError, "client"),
        ({"world": {"trace": "nowhere.parquet"}}, TraceError, "nowhere.parquet"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(small(**changes), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_arms_leave_nothing_behind_either(tmp_path: Path) -> None:
    arms = [small(name="x/a", world={"trace": "nowhere.parquet"}), small(name="x/b")]
    with pytest.raises(SomeFailed, match=r"1 of 2 runs failed\nx/a: nowhere.parquet") as failed:
        simulate(arms, out=tmp_path, workers=0)
    assert [type(error) for error in failed.value.errors.values()] == [TraceError]
    assert [result.folder for result in failed.value.results] == [tmp_path / "x" / "b"]
    assert [r.label for r in analysis.open_all([tmp_path / "x"])] == ["b"]
    ended = [small(name="x/b", stop={"steps": 1}), small(name="x/a", stop={"steps": 1})]
    simulate(ended, out=tmp_path, workers=0, force=True)
    assert [r.label for r in analysis.open_all([tmp_path / "x"])] == ["b", "a"]


def test_arms_run_though_another_one_fails_on_its_way(tmp_path: Path) -> None:
    arms = [small(name=f"x/{arm}", stop={"steps": 2}) for arm in "abc"]
    peace = [run(arm, tmp_path / "peace").digest for arm in arms]

    def fail(progress: Progress) -> None:
        if progress.folder.name == "b":
            raise RuntimeError("the disk is on fire")

    with pytest.raises(
        SomeFailed, match=r"x/b: RuntimeError: the disk is on fire\n.*fedsim resume"
    ) as failed:
        simulate(arms, out=tmp_path, workers=0, watch=fail)
    assert [result.digest for result in failed.value.results] == [peace[0], peace[2]]
    assert manifest(tmp_path / "x" / "b")["status"] == "failed"
    again = simulate(arms, out=tmp_path, workers=0, resume=True)
    assert [result.digest for result in again] == peace


def test_a_folder_that_is_taken_is_refused_before_the_first_run(tmp_path: Path) -> None:
    run(small(name="b", stop={"steps": 1}), tmp_path)
    with pytest.raises(RunError, match="b exists"):
        simulate([small(name="a"), small(name="b")], out=tmp_path, workers=0)
    assert not (tmp_path / "a").exists()
    with pytest.raises(RunError, match="b/c would be in the folder of a run"):
        run(small(name="b/c"), tmp_path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "a"), "'a' and 'a' would have the same folder"),
        (("x/A", "x/a"), "'x/A' and 'x/a' would have one folder where file names ignore case"),
        (("X", "x/a"), "'x/a' would be in the folder of 'X'"),
    ],
)
def test_runs_that_share_a_folder_are_refused(tmp_path: Path, names: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"configs: the runs {message}"):
        simulate([small(name=name) for name in names], out=tmp_path / "out", workers=0, force=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"configs": {}}, r"config: task: missing; give \[task\] .*\nconfig: pacing: missing; give"),
        (
            {"configs": 5},
            "configs: expected a path, a dict of tables, a RunConfig, .* or a list of these, found 5",
        ),
        ({"configs": [{}, b"x"]}, r"configs\[1\]: expected a path, .* found b'x'"),
        ({"configs": []}, "configs: expected at least one configuration, found none"),
        ({"configs": None}, r"configs(\[0\])?: .* found None"),
        ({"configs": "quikstart.toml"}, "quikstart.toml: there is no such file"),
        ({"configs": [None]}, r"configs(\[0\])?: .* found None"),
        ({"out": None}, "out: expected a path, found None"),
        ({"out": b"runs"}, "out: expected a path, found b'runs'"),
        ({"out": "runs\0"}, "out: expected a path, found one with a NUL"),
        ({"out": "runs\udcff"}, r"out: expected text in UTF-8, found the bytes b'runs\\xff'"),
        ({"force": "no"}, "force: expected True or False, found 'no'"),
        ({"resume": None}, "resume: expected True or False, found None"),
        ({"profile": 1}, "profile: expected True or False, found 1"),
        ({"workers": 1.5}, "workers: expected a whole number or 'auto' or a RayPool, found 1.5"),
        ({"workers": True}, "workers: .* found True"),
        ({"workers": None}, "workers: .* found None"),
        ({"device": ["cpu"]}, r"device: .* found list \['cpu'\]"),
        ({"watch": None}, "watch: expected a function, found None"),
        *(
            ({"ray_address": address, "workers": 1}, "ray_address: expected 'auto' or HOST:PORT, found '")
            for address in ("", "nonsense", "ray://a:1", "127.0.0.1", "a b:1")
        ),
        ({"ray_address": 6379, "workers": 1}, "ray_address: expected text or None, found 6379"),
    ],
)
def test_arguments_of_wrong_types_are_refused_in_words(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    given = {"configs": small(), "out": tmp_path / "out", "workers": 0} | arguments
    with pytest.raises(ConfigError, match=message):
        simulate(given.pop("configs"), **given)
    assert not (tmp_path / "out").exists()


def test_modes_and_defaults_of_the_caller_change_no_bit(tmp_path: Path) -> None:
    config = small(stop={"steps": 2})
    digest = run(config, tmp_path / "plain").digest
    before = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            assert run(config, tmp_path / "modes").digest == digest
            assert torch.empty(0).is_meta
            assert torch.is_inference_mode_enabled()
        assert (torch.get_default_dtype(), torch.get_float32_matmul_precision()) == (torch.float64, "medium")
    finally:
        torch.set_default_dtype(before[0])
        torch.set_float32_matmul_precision(before[1])


def test_a_trace_for_fewer_clients_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "three.parquet"
    Trace.of([0, 1, 2], [0] * 3, [10**9] * 3, "online", clients=3, horizon_us=10**9).write(path)
    with pytest.raises(TraceError, match=r"3 clients.*12"):
        run(small(world={"trace": str(path)}), tmp_path / "runs")


def test_a_trace_that_ends_early_fails_with_the_time_and_keeps_what_was_done(tmp_path: Path) -> None:
    world = {"scenario": "always_on", "horizon": "20min", "after_end": "error"}
    with pytest.raises(TraceError, match="ends at"):
        run(small(world=world, stop={"steps": 1000}), tmp_path)
    opened = analysis.open_run(tmp_path / "small")
    assert opened.manifest["status"] == "failed"
    assert len(opened.steps) > 0


def test_a_world_in_which_time_stands_still_needs_a_number_of_steps(tmp_path: Path) -> None:
    path = tmp_path / "still.parquet"
    Trace.of(
        range(12), [0] * 12, [10**9] * 12, "online", clients=12, horizon_us=10**9, after_end="repeat"
    ).write(path)
    with pytest.raises(ConfigError, match=r"stop\.steps"):
        run(small(world={"trace": str(path)}, stop={"time": "1h"}), tmp_path / "runs")
    assert run(small(world={"trace": str(path)}, stop={"steps": 2}), tmp_path / "runs").status == "done"


def test_more_memory_than_there_is_is_refused_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedsim.runs import memory_estimate as memory

    monkeypatch.setattr(
        memory.psutil, "virtual_memory", lambda: type("M", (), {"available": 20_000, "total": 20_000})()
    )
    with pytest.raises(ConfigError, match=r"would need .* (GiB|MiB) .*history .*but 19.5 KiB are free"):
        run(small(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_refused_if_the_gpu_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def full(footprint: Footprint) -> None:
        seen.append(footprint.server.device)
        raise ConfigError("memory.budget")

    monkeypatch.setattr("fedsim.runs.spec.check_fits_gpu", full)
    with pytest.raises(ConfigError, match=r"memory\.budget"):
        run(small(), tmp_path)
    assert seen == ["cpu"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("level", "blocks"), [("model", [-1]), ("layers", [-1, 0, 1])])
@pytest.mark.parametrize("rule", ["fedavg", "fedlf"])
def test_conflicts_are_recorded_if_asked_for(
    tmp_path: Path, rule: str, level: str, blocks: list[int]
) -> None:
    plain = run(small(algorithm={"name": rule}), tmp_path / "plain")
    asked = run(small(algorithm={"name": rule}, record={"conflicts": level}), tmp_path / "asked")
    each = pq.read_table(asked.folder / "conflicts.parquet").to_pandas()
    assert sorted(each.block.unique()) == blocks
    steps = analysis.open_run(asked.folder).frame("steps").set_index("step")
    whole = each[each.block == -1]
    present = whole[whole.age == 0]
    assert present.groupby("step").size().tolist() == steps[steps.updates > 0].updates.tolist()
    counted = (present.cosine < -1e-9).groupby(present.step).sum()
    assert counted.tolist() == steps[steps.updates > 0].model_conflicts.tolist()
    assert not (plain.folder / "conflicts.parquet").exists()
    assert json.loads((asked.folder / "manifest.json").read_text())["digest"] != plain.digest
    shared = ["job", "client", "status", "end_us", "loss_train"]
    jobs = [analysis.open_run(r.folder).frame("jobs")[shared] for r in (plain, asked)]
    assert jobs[0].equals(jobs[1]), "looking must not change what happens"


def test_an_experiment_is_not_replaced_while_an_arm_runs_or_by_a_fork_of_one(tmp_path: Path) -> None:
    arm = run(small(name="both/a"), tmp_path).folder
    with lock(arm), pytest.raises(RunError, match="both/a: another process is running it"):
        run(small(name="both"), tmp_path, force=True)
    with pytest.raises(ConfigError, match=r"both contains the parent .*both/a: choose another name"):
        fork(arm, At(step=2), name="both", out=tmp_path, workers=0, force=True)
    assert manifest(arm)["status"] == "done"
    run(small(name="both"), tmp_path, force=True)
    assert not arm.exists()


def test_a_run_that_cannot_begin_lets_go_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "both" / "arms.json").mkdir(parents=True)
    with pytest.raises(RunError, match=r"arms\.json: cannot be written") as kept:
        run(small(name="both/a"), tmp_path)
    (tmp_path / "both" / "arms.json").rmdir()
    assert run(small(name="both/a"), tmp_path, force=True).status == "done"
    assert kept.value.__traceback__ is not None  # which a notebook keeps, with all that it refers to


LITTLE = {"budget": "34 kB"}


@pytest.mark.parametrize(
    ("before", "same", "others"),
    [
        ({}, [{"history": "float32"}, {"slots": 12}], [{"slots": 1}, {"history": "bfloat16"}, LITTLE]),
        ({"slots": 1}, [], [{}, {"slots": 2}]),
        (LITTLE, [], [{}, {"slots": 1}, {"budget": "1 GB"}]),
    ],
)
def test_a_run_goes_on_only_with_its_own_memory(
    before: dict[str, Any], same: list[dict[str, Any]], others: list[dict[str, Any]], tmp_path: Path
) -> None:
    folder = run(small(stop={"steps": 1}, memory=before), tmp_path).folder

    def differing(memory: Any) -> list[str]:
        found = run_in(folder, small(stop={"steps": 1}, memory=memory)).differences
        return [text.partition(":")[0] for text in found]

    chosen = read_toml(folder / "config.resolved.toml")["memory"]
    for memory in (before, chosen, *same):
        assert differing(memory) == []
    for memory in others:
        assert differing(memory)
    content = manifest(folder)
    del content["memory"]["asked"]  # as in runs of earlier versions
    write_json(folder / "manifest.json", content)
    assert differing(before) == []
    if "budget" not in before:
        assert differing({"slots": 2}) == ["memory.slots"]


def test_a_finished_run_has_the_accuracy_that_it_had_when_it_ended(tmp_path: Path) -> None:
    """Not that of all evaluations of its last step: at the end all clients are evaluated, before that three."""
    config = small(evaluate={"every_steps": 1, "clients": 3}, stop={"time": "20min"})
    first = run(config, tmp_path)
    (again,) = simulate(config, out=tmp_path, workers=0, resume=True)
    evals = pq.read_table(first.folder / "evals.parquet").to_pandas()
    assert evals.query("step == step.max()")["time_us"].nunique() == 2
    assert again.accuracy == first.accuracy


def test_an_interrupt_while_a_run_is_written_starts_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Recorder.close

    def interrupted(recorder: Recorder, params: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return close(recorder, params)

    monkeypatch.setattr(Recorder, "close", interrupted)
    (result,) = simulate([small(name=name, stop={"steps": 2}) for name in "abc"], out=tmp_path, workers=0)
    assert (result.status, result.asked_to_stop) == ("done", True)
    assert not (tmp_path / "b").exists()
