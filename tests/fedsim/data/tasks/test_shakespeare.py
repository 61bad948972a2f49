from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call

import inputs
from fedsim import analysis, plugins
from fedsim.common.errors import ConfigError, DataError
from fedsim.config.load import parse
from fedsim.data.federated_data import Task
from fedsim.data.tasks.shakespeare import ALPHABET, FILE, speeches
from fedsim.runs.build import prepare
from fedsim.runs.simulate import simulate
from fedsim.training.job import Job
from fedsim.training.workbench import Workbench

PLAY = """First Citizen:
Before we proceed any further,
hear me speak.

All:
Speak, speak.

TITUS:

First Citizen:
You are all resolved rather to die than to famish?

All:
Resolved. resolved.

a stage direction without a role

Second Citizen:
One word, good c\u00eftizens; and many more words than that, my friends.
"""


@pytest.fixture
def play(tmp_path: Path) -> Path:
    path = tmp_path / FILE
    path.parent.mkdir()
    path.write_text(PLAY, encoding="utf-8")
    return tmp_path


def build(data_dir: Path, clients: int = 2, seed: int = 0, **options: Any) -> Task:
    merged = {"length": 10, "least": 15} | options
    task: Task = plugins.build("task", "shakespeare", merged, clients=clients, seed=seed, data_dir=data_dir)
    return task


def text(numbers: Sequence[float]) -> str:
    return "".join(ALPHABET[int(n)] for n in numbers)


def test_the_alphabet_is_that_of_the_paper() -> None:
    assert len(set(ALPHABET)) == len(ALPHABET) == 80
    assert "".join(sorted(ALPHABET)) == ALPHABET


def test_speeches_of_a_role_follow_each_other(play: Path) -> None:
    assert list(speeches(play / FILE)) == ["First Citizen", "All", "Second Citizen"]
    assert speeches(play / FILE)["All"] == "Speak, speak.\nResolved. resolved."


def test_every_character_is_predicted_from_those_before_it(play: Path) -> None:
    task = build(play, clients=3)
    assert (task.x.dtype, task.y.dtype, task.n_classes, task.model) == (np.float32, np.int64, 80, "lstm")
    assert task.natural is not None
    for rows, speech in zip(task.natural, speeches(play / FILE).values(), strict=True):
        spelt = speech.replace("\u00ef", "}")
        assert len(rows) == len(speech) - 10
        for place, row in enumerate(rows.tolist()):
            assert text(task.x[row]) == spelt[place : place + 10]
            assert ALPHABET[task.y[row]] == spelt[place + 10]


def test_a_stride_leaves_samples_out(play: Path) -> None:
    whole, some = (build(play, clients=3, stride=stride) for stride in (1, 4))
    assert whole.natural is not None
    assert some.natural is not None
    kept = np.concatenate([rows[::4] for rows in whole.natural])
    np.testing.assert_array_equal(some.x, whole.x[kept])
    np.testing.assert_array_equal(some.y, whole.y[kept])
    assert [len(rows) for rows in some.natural] == [-(-len(rows) // 4) for rows in whole.natural]


def test_roles_are_drawn_with_the_seed_and_long_enough(play: Path) -> None:
    drawn = {len(build(play, clients=1, seed=seed).y) for seed in range(12)}
    assert drawn == {len(speech) - 10 for speech in speeches(play / FILE).values()}
    assert len({len(build(play, clients=1, seed=seed, least=40).y) for seed in range(12)}) == 2
    named = {
        build(play, clients=1, seed=seed).names: len(build(play, clients=1, seed=seed).y)
        for seed in range(12)
    }
    assert named == {(role,): len(speech) - 10 for role, speech in speeches(play / FILE).items()}


def test_too_few_roles_are_counted(play: Path) -> None:
    with pytest.raises(
        DataError, match=r"has 2 roles with at least 40 characters, not 3: use fewer clients or"
    ):
        build(play, clients=3, least=40)
    with pytest.raises(DataError, match="has 0 roles with at least 201 characters, not 2"):
        build(play, length=200)


def test_missing_and_foreign_files_are_named(play: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"task 'shakespeare': no {FILE} in {tmp_path / 'none'}"):
        build(tmp_path / "none")
    for content, message in (
        (b"no play", "line such as 'ROLE:', found none"),
        (b"\xff\xfe", "cannot be read"),
    ):
        (play / FILE).write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            build(play)
        assert str(play / FILE) in str(caught.value)


def test_the_real_play() -> None:
    folder = inputs.data_of("shakespeare")
    texts = speeches(folder / FILE)
    assert len(texts) == 299
    assert [sum(len(t) >= least for t in texts.values()) for least in (1000, 2000)] == [141, 99]
    task = build(folder, clients=99, length=80, least=2000, stride=20)
    assert task.natural is not None
    assert min(map(len, task.natural)) >= (2000 - 80) // 20
    first = [text(task.x[rows[0]]) for rows in task.natural]
    assert first == [t[:80].replace("$", "}") for t in texts.values() if len(t) >= 2000]


# --- in a run


def config(data_dir: Path, mode: str = "auto") -> dict[str, Any]:
    return {
        "task": {
            "name": "shakespeare",
            "clients": 3,
            "length": 10,
            "least": 15,
            "data_dir": str(data_dir),
            "shuffle": False,
        },
        "model": {"name": "lstm", "embedding": 4, "hidden": [8, 6]},
        "pacing": {"preset": "sync", "clients": 3},
        "train": {"batch_size": 10, "lr": 0.8, "mode": mode},
        "stop": {"steps": 3},
        "algorithm": {"name": "fedlf"},
    }


def test_a_run_trains_one_client_after_the_other(play: Path, tmp_path: Path) -> None:
    runs = [
        simulate(parse(config(play), "here", "run"), out=tmp_path / out, workers=0)[0] for out in ("a", "b")
    ]
    first, repeated = (analysis.open_run(run.folder) for run in runs)
    assert first.config["train"]["mode"] == "loop"
    assert first.manifest["digest"] == repeated.manifest["digest"]
    assert np.isfinite(first.jobs["loss_train"].to_numpy()).all()


def test_a_step_descends_along_the_gradient(play: Path) -> None:
    """The layers' weights are views into one vector, which recurrent layers must notice."""
    made = prepare(parse(config(play) | {"train": {"batch_size": "full", "lr": 0.8}}, "here", "run")[0])
    bench, start = Workbench(made.bench, made.data), made.initial()
    row = torch.empty(made.network.P)
    bench.work(Job(0, 1, 0, 0), start, row)
    rows = torch.from_numpy(made.data.train.rows(1))
    weights = made.network.views(start.clone().requires_grad_())
    leaves = {name: view.detach().requires_grad_() for name, view in weights.items()}
    logits = functional_call(made.network.module, leaves, (torch.from_numpy(made.data.x)[rows],))
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(made.data.y)[rows])
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    expected = torch.cat([0.8 * g.reshape(-1) for g in gradients])
    torch.testing.assert_close(row, expected, rtol=1e-3, atol=1e-6)
    assert all(bool(row[a:b].any()) for a, b in made.network.blocks)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("vmap", r"torch\.func cannot map over a recurrent layer \(LSTM\)"),
        ("dense", "not a sequence of Linear layers with ReLU"),
    ],
)
def test_other_modes_are_refused_with_the_reason(play: Path, mode: str, reason: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"train\.mode: '{mode}' cannot be used: .*{reason}.*; take 'loop', or 'auto'"
    ):
        prepare(parse(config(play, mode), "here", "run")[0])


def test_operations_and_bytes_of_the_model_reach_the_costs(play: Path) -> None:
    made = prepare(parse(config(play), "here", "run")[0])
    weights = 4 * 8 * (4 + 8) + 4 * 6 * (8 + 6)
    assert made.network.flops == 10 * 2 * weights + 2 * 6 * 80
    assert made.network.widest == 10 * 8 + 2 * 10 * 6
    rows = len(made.data.train.indices)
    assert made.footprint(0).parts()["evaluation"] == 4 * made.network.widest * rows
    assert made.footprint(2).parts()["evaluation"] == 2 * 4 * made.network.widest * rows
    assert made.footprint(0).parts()["data"] == made.data.nbytes
