"""Tasks and models that Python code passes to runs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, TensorDataset

import fedsim
from fedsim import analysis, plugins
from fedsim.common.errors import ConfigError, FolderError, UnusedWorld
from fedsim.config.load import load_config
from fedsim.data.federated_data import Task
from fedsim.execution.actor_pool import RayPool
from fedsim.invariants import check
from fedsim.runs.fork import fork
from fedsim.runs.plan.plan import plan
from fedsim.runs.progress import Progress
from fedsim.runs.replay import replay
from fedsim.runs.result import Result
from fedsim.runs.resume import resume
from fedsim.runs.simulate import simulate
from fedsim.runs.verify import verify
from fedsim.worlds.importer import import_trace

TABLES: dict[str, Any] = {
    "pacing": {"preset": "sync", "clients": 3},
    "train": {"batch_size": 10},
    "stop": {"steps": 6},
    "checkpoint": {"every_steps": 2, "keep": "all"},
}
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(120, 4)).astype(np.float32), RNG.integers(3, size=120)
TASK = Task.from_arrays(X, Y, np.arange(120) % 6)
OTHER = Task.from_arrays(X, Y, np.arange(120) % 5)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def wider() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def run(out: Path, tables: dict[str, Any] = TABLES, **options: Any) -> Result:
    return simulate(tables, out=out, **({"task": TASK, "model": net, "workers": 0} | options))[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(tmp_path_factory.mktemp("given"))


def test_a_run_is_that_of_the_same_task_and_model_in_files(finished: Result, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    (tmp_path / "own.py").write_text(
        "import numpy as np\nfrom torch import nn\nfrom fedsim import Task\n\n\n"
        "def task(*, clients: int, seed: int, data_dir) -> Task:\n"
        f"    data = np.load({str(tmp_path / 'data.npz')!r})\n"
        "    rows = tuple(np.arange(120)[k::6] for k in range(6))\n"
        "    return Task('own', data['x'], data['y'], 3, np.zeros(120, dtype=bool), rows)\n\n\n"
        "def net(*, in_shape, n_classes) -> nn.Module:\n"
        "    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))\n"
    )
    named = {
        "task": {"name": f"{tmp_path}/own.py:task", "clients": 6},
        "model": {"name": f"{tmp_path}/own.py:net"},
    }
    [other] = simulate(TABLES | named, out=tmp_path, workers=0)
    assert other.digest == finished.digest


def test_the_manifest_names_both_by_digest(finished: Result) -> None:
    given = json.loads((finished.folder / "manifest.json").read_text())["given"]
    assert given["task"] == TASK.digest()
    assert set(given) == {"task", "model"}
    assert f'"python:{given["model"]}"' in (finished.folder / "config.resolved.toml").read_text()


TOWN = np.array(["oslo", "bonn", "york"])[np.arange(120) % 3]


def test_the_folder_has_the_names_of_the_clients(tmp_path: Path) -> None:
    task = Task.from_arrays(X, Y, TOWN)
    result = run(tmp_path, task=task)
    assert result.run.names == ("bonn", "oslo", "york")
    child = fork(result.folder, 3, {"train.lr": 0.2}, out=tmp_path, workers=0, task=task, model=net)
    assert child.run.names == result.run.names
    assert not check(child.folder).violations
    renamed = Task.from_arrays(X, Y, np.where(TOWN == "oslo", "paris", TOWN))
    assert renamed.digest() == task.digest()
    with pytest.raises(
        FolderError, match="found 'paris' for client 1, which is 'oslo' there; restore the names"
    ):
        verify(result.folder, workers=0, task=renamed, model=net)
    two = {"preset": "sync", "clients": 2}
    run(tmp_path, TABLES | {"name": "some", "task": {"unseen": 1}, "pacing": two}, task=task)
    some = fedsim.open_run(tmp_path / "some")
    [unseen] = some.manifest["unseen"]
    assert some.names == tuple(name for k, name in enumerate(result.run.names) if k != unseen)


@pytest.mark.parametrize("order", ["first", "name"])
def test_a_world_with_the_clients_of_the_task_in_another_order_is_told(order: str, tmp_path: Path) -> None:
    log = "client,start,end\n" + "".join(f"{name},0,3600\n" for name in ("york", "oslo", "bonn"))
    (tmp_path / "log.csv").write_text(log)
    import_trace([tmp_path / "log.csv"], "csv", {"order": order}).write(tmp_path / "w.parquet")
    tables = TABLES | {"world": {"trace": str(tmp_path / "w.parquet")}}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UnusedWorld)
        result = run(tmp_path, tables, task=Task.from_arrays(X, Y, TOWN))
    found = [str(each.message) for each in told if "client 0 has the samples of 'bonn'" in str(each.message)]
    assert len(found) == (order == "first")
    frame = analysis.run_clients(result.run)
    assert list(frame["name"]) == ["bonn", "oslo", "york"]
    assert list(frame["id"]) == (["york", "oslo", "bonn"] if order == "first" else ["bonn", "oslo", "york"])


def test_nothing_is_kept_after_a_run(finished: Result) -> None:
    given = json.loads((finished.folder / "manifest.json").read_text())["given"]
    assert not any(plugins.is_given(f"python:{digest}") for digest in given.values())
    with pytest.raises(ConfigError, match=r"task 'python:.*came from Python code.*with task=\.\.\."):
        load_config(finished.folder / "config.resolved.toml")


AGAIN: dict[str, Any] = {
    "fork": lambda folder, out, **given: fork(folder, 3, {"train.lr": 0.2}, out=out, workers=0, **given),
    "replay": lambda folder, out, **given: replay(folder, ["train.lr=0.2"], out=out, workers=0, **given),
    "verify": lambda folder, out, **given: verify(folder, workers=0, **given),
}


@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
def test_a_run_is_used_again_with_the_same_task_and_model_alone(
    again: Any, finished: Result, tmp_path: Path
) -> None:
    before, now = TASK.digest(), OTHER.digest()
    with pytest.raises(ConfigError, match=f"was given its task from Python: pass the same task=.*{before}"):
        again(finished.folder, tmp_path)
    with pytest.raises(ConfigError, match="was given its model from Python: pass the same model="):
        again(finished.folder, tmp_path, task=TASK)
    with pytest.raises(ConfigError, match=f"task: expected the one with the digest {before}, found {now}"):
        again(finished.folder, tmp_path, task=OTHER, model=net)
    with pytest.raises(ConfigError, match=r"model: expected the one with the digest [0-9a-f]{32}, found "):
        again(finished.folder, tmp_path, task=TASK, model=wider)
    assert not any(tmp_path.iterdir())
    done = again(finished.folder, tmp_path, task=TASK, model=net)
    assert done.status == "done" if isinstance(done, Result) else not any(v.difference for v in done)


class Stop(Exception):
    """Ends a run early."""


def _stop(progress: Progress) -> None:
    if progress.run_state.step == 5:
        raise Stop


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    with pytest.raises(Stop):
        run(tmp_path, watch=_stop)
    return tmp_path / "run"


def test_a_resumed_run_ends_with_the_same_digest(failed: Path, finished: Result) -> None:
    with pytest.raises(ConfigError, match="task: expected the one with the digest"):
        resume(failed, task=OTHER, model=net, workers=0)
    assert resume(failed, task=TASK, model=net, workers=0).digest == finished.digest


def test_simulate_resumes_with_the_same_task_and_model(failed: Path, finished: Result) -> None:
    assert run(failed.parent, resume=True).digest == finished.digest


def test_another_task_does_not_continue_a_run(finished: Result) -> None:
    expected = f"task.name: expected 'python:{OTHER.digest()}', found 'python:{TASK.digest()}'"
    with pytest.raises(ConfigError, match=expected):
        run(finished.folder.parent, task=OTHER, resume=True)
    assert run(finished.folder.parent, resume=True).digest == finished.digest


def test_the_invariants_of_its_tables_can_be_checked(finished: Result) -> None:
    assert not check(finished.folder).violations


def test_a_fork_is_verified_and_forked_again(finished: Result, tmp_path: Path) -> None:
    given: dict[str, Any] = {"task": TASK, "model": net, "workers": 0}
    child = fork(finished.folder, "3", {"train.lr": 0.2}, out=tmp_path, **given)
    assert not any(verdict.difference for verdict in verify(child.folder, **given))
    assert fork(child.folder, 4, out=tmp_path, name="two", **given).status == "done"


def test_a_model_that_takes_shapes_fits_the_task_of_the_configuration(tmp_path: Path) -> None:
    tables = TABLES | {
        "task": {"name": "digits", "clients": 6},
        "partition": {"name": "iid"},
        "stop": {"steps": 1},
    }

    def flat(in_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(in_shape)), n_classes))

    result = run(tmp_path, tables, task=None, model=flat)
    named = tables | {"model": {"name": "softmax"}, "name": "named"}
    assert result.digest == run(tmp_path, named, task=None, model=None).digest
    [config] = load_config(tables | {"name": "checked"})
    assert run(tmp_path, config, task=None, model=flat).digest == result.digest  # type: ignore[arg-type]


def test_a_pair_of_datasets_is_divided_and_tested_on_the_second(tmp_path: Path) -> None:
    train, test = (
        TensorDataset(torch.tensor(X[rows]), torch.tensor(Y[rows])) for rows in (slice(90), slice(90, None))
    )
    tables = TABLES | {"task": {"clients": 5}, "partition": {"name": "iid"}}
    result = run(tmp_path, tables, task=(train, test))
    assert result.status == "done"
    run_again = fedsim.open_run(result.folder)
    assert run_again.config["task"]["pool"] == "official"
    assert int(run_again.final().n.sum()) == 30
    shared = tables | {"task": {"clients": 5, "pool": "all"}}
    everything = fedsim.open_run(run(tmp_path, shared | {"name": "all"}, task=(train, test)).folder)
    assert everything.config["task"]["fractions"] == [0.8, 0.1, 0.1]


@pytest.mark.parametrize("clients", [2, 6])
@pytest.mark.parametrize("as_given", [list, lambda parts: dict(enumerate(parts))])
def test_datasets_of_clients_are_told_the_task_that_they_become(
    clients: int, as_given: Callable[[Any], Any], tmp_path: Path
) -> None:
    """Two of them are no pair of a training and a test set."""
    rows = np.array_split(np.arange(len(X)), clients)
    parts = [TensorDataset(torch.tensor(X[of_client]), torch.tensor(Y[of_client])) for of_client in rows]
    divided = TABLES | {"task": {"clients": 5}, "partition": {"name": "iid"}}
    with pytest.raises(ConfigError, match=rf"found a \w+ of {clients} entries; datasets of clients") as told:
        run(tmp_path, divided, task=as_given(parts))
    _, _, recipe = str(told.value).partition("become one task: ")
    task = eval(recipe, {"fedsim": fedsim, "ConcatDataset": ConcatDataset, "np": np, "parts": parts})
    assert [of_client.tolist() for of_client in task.natural] == [of_client.tolist() for of_client in rows]
    assert np.array_equal(task.y, Y)


def test_a_plan_takes_them_too() -> None:
    [planned] = plan(TABLES, task=TASK, model=net, workers=0)
    assert (planned.steps, planned.clients) == (6, 6)


@pytest.mark.parametrize(
    ("tables", "given", "message"),
    [
        ({"task": {"name": "digits"}}, {}, "task.name: given twice, as task= and as 'digits'"),
        ({"arms": {"a": {"task": {"name": "mnist"}}}}, {}, "task.name: given twice, as task= and as 'mnist'"),
        ({"model": {"name": "mlp"}}, {}, "model: given twice, as model= and as 'mlp'"),
        ({"task": {"clients": 9}}, {}, "has 6 clients of its own, not 9"),
        ({}, {"task": (X, Y, X)}, r"or the pair \(train, test\) of two, found a tuple of 3 entries"),
        (
            {},
            {"task": "digits"},
            r"task: expected a fedsim.Task, a torch dataset or the pair \(train, test\) of two, found 'digits'",
        ),
        (
            {},
            {"task": Task.from_arrays(X, Y)},
            r"the samples of task= have no clients: pass client= .* \[partition\]",
        ),
        ({}, {"model": nn.Linear(4, 3)}, "model: expected a function that returns a module, found a module"),
        ({}, {"model": lambda: nn.Linear(9, 3)}, "does not take samples of shape"),
    ],
)
def test_contradictions_are_refused(
    tables: dict[str, Any], given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, TABLES | tables, **given)
    assert not any(tmp_path.iterdir())


def test_a_checked_configuration_has_a_task_already(tmp_path: Path) -> None:
    [config] = load_config(TABLES | {"task": {"name": "digits", "clients": 6}, "partition": {"name": "iid"}})
    with pytest.raises(ConfigError, match="task: given twice, as task= and as 'digits' in run"):
        run(tmp_path, config)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sets: they change a file or a dict"):
        simulate(config, sets={"seed": 2}, out=tmp_path, workers=0)


@pytest.mark.ray
def test_workers_train_a_lambda_to_the_same_bits(
    finished: Result, tmp_path: Path, one_worker: RayPool
) -> None:
    layers = {"model": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))}
    made = run(tmp_path, workers=one_worker, **layers)
    assert made.digest == finished.digest
