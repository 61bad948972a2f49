"""What newcomers write by mistake in Python is answered with what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedsim

X = torch.linspace(-1, 1, 240).reshape(60, 4)
Y = (torch.arange(60) // 2 % 2).long()
CLIENT = torch.arange(60) % 6
PAIRS = TensorDataset(X, Y)
CONFIG = {"name": "small", "pacing": {"preset": "sync", "clients": 3}, "stop": {"steps": 1}}


def net(outputs: int = 2) -> nn.Module:
    return nn.Linear(4, outputs)


def task(**changed: Any) -> fedsim.Task:
    return fedsim.Task.from_arrays(**({"x": X, "y": Y, "client": CLIENT} | changed))


def simulate(config: Any = CONFIG, **changed: Any) -> Any:
    given = {"task": task(), "model": net, "workers": 0} | changed
    return fedsim.simulate(config, **given)


def with_rule(body: str) -> Any:
    Path("mine.py").write_text(
        "import numpy as np\nfrom fedsim import Direction, Needs, stateless\n"
        f"def rule():\n    return stateless(lambda stack: {body}, Needs())\n",
        encoding="utf-8",
    )
    return simulate(CONFIG | {"algorithm": {"name": "mine.py:rule"}})


MISTAKES = {
    "a number as configuration": (lambda: fedsim.simulate(10), "expected a path, a dict of tables"),
    "rounds": (lambda: fedsim.simulate({"rounds": 10}), "here it is stop.steps"),
    "samples without clients": (lambda: simulate(task=PAIRS), "pass client= to fedsim.Task.from_dataset"),
    "clients of some samples": (lambda: task(client=CLIENT[:50]), "client: expected 60 .* found .*50"),
    "clients as floats": (lambda: task(client=CLIENT.float()), "astype.int. makes whole numbers"),
    "a client without a name": (
        lambda: task(client=np.array(["a"] * 59 + [None], dtype=object)),
        "None for sample 59",
    ),
    "labels as floats": (lambda: task(y=Y.float()), "astype.int., or long.. of a tensor, makes them"),
    "labels as names": (lambda: task(y=np.where(Y, "ill", "well")), "return_inverse=True"),
    "labels as columns": (lambda: task(y=nn.functional.one_hot(Y)), r"y.argmax\(1\)"),
    "NaN": (
        lambda: simulate(task=task(x=X / X[:, :1] * float("nan"))),
        r"^x: .* finite .* nan at \[0, 0\]",
    ),
    "a loader": (lambda: simulate(task=DataLoader(PAIRS)), "loader.dataset"),
    "a task by name": (lambda: simulate(task="digits"), r"\[task\] with name = 'digits'"),
    "channels last": (
        lambda: simulate(
            task=task(x=torch.zeros(60, 8, 8, 3, dtype=torch.uint8)),
            model=lambda: nn.Sequential(nn.Conv2d(3, 1, 8), nn.Flatten(), nn.Linear(1, 2)),
        ),
        r"permute\(0, 3, 1, 2\)",
    ),
    "a module": (lambda: simulate(model=net()), "pass the class Linear"),
    "outputs": (lambda: simulate(model=lambda: net(1)), r"^model=: expected logits \[1, 2\].*each class"),
    "lr in words": (lambda: simulate(CONFIG | {"train": {"lr": "fast"}}), "train.lr: .* number"),
    "a rule misspelt": (lambda: simulate(CONFIG | {"algorithm": {"name": "fedavgg"}}), "mean 'fedavg'"),
    "a client method": (
        lambda: simulate(CONFIG | {"algorithm": {"name": "fedprox"}}),
        'client.name = "fedprox"',
    ),
    "a missing run": (lambda: fedsim.open_run("runs/none"), "there is no run folder"),
    "pairs": (lambda: simulate(sets=[("train.lr", 0.1)]), r"\{'train.lr': 0.1\}"),
    "workers as text": (lambda: simulate(workers="2"), "expected a whole number or 'auto'"),
    "gpu": (lambda: simulate(device="gpu"), "did you mean 'cuda'"),
    "too few weights": (lambda: with_rule("Direction(np.ones(stack.n - 1))"), "one per row"),
    "an array": (lambda: with_rule("np.ones(stack.n)"), r"return fedsim.Direction\(weights\)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, answer = MISTAKES[mistake]
    with pytest.raises(fedsim.Error, match=answer):
        call()


def test_answers_about_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [result] = simulate()
    given = {"task": task(), "model": net, "workers": 0}
    for call, answer in (
        (simulate, "in Python out=, force=True or resume=True"),
        (
            lambda: fedsim.resume(result.folder, **given),
            r"done; to go on from its last step, fork it with another end: fedsim\.fork\('runs/small', \d+, "
            r"\['stop\.steps=\d+'\], task=\.\.\., model=\.\.\.\)",
        ),
        (lambda: fedsim.open_study(result.folder), "it is the folder of a run"),
        (lambda: result.run.plot("nothing"), "no picture 'nothing'; known: .*participation"),
    ):
        with pytest.raises(fedsim.Error, match=answer):
            call()


def test_a_run_of_python_is_continued_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fedsim.Error) as error:
        with_rule("None")
    assert "fedsim.resume('runs/small', task=..., model=...)" in error.value.__notes__[-1]


def test_client_names_of_pandas_are_names() -> None:
    names = np.array([f"site{k}" for k in CLIENT.tolist()])
    assert task(client=names.astype(object)).digest() == task(client=names).digest()
