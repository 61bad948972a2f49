"""How precisely clients compute: what it changes, and what it must not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim import analysis
from fedsim.common.errors import ConfigError
from fedsim.common.threads import at_most
from fedsim.config.load import parse
from fedsim.config.run import RunConfig
from fedsim.runs.build import prepare
from fedsim.runs.simulate import simulate
from fedsim.training.job import Cohort
from fedsim.training.precision import Precision, device_named, lowered, rounding, untouched
from fedsim.training.workbench import Workbench

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bfloat16")
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"model": {"name": "mlp", "hidden": [64]}},
    "vmap": {"model": {"name": "cnn", "channels": [4], "kernel": 3, "hidden": [16]}, "mode": "vmap"},
    "loop": {"model": {"name": "cnn", "channels": [4], "kernel": 3, "norm": "group", "hidden": [16]}},
    "fedprox": {"model": {"name": "mlp", "hidden": [64]}, "client": {"name": "fedprox", "mu": 0.1}},
}


def config(case: str, precision: str, **more: Any) -> RunConfig:
    given = dict(MODELS[case])
    raw = {
        "name": precision,
        "task": {"name": "digits", "clients": 10},
        "partition": {"name": "pathological", "classes": 2},
        "pacing": {"preset": "sync", "clients": 4},
        "train": {"batch_size": 20, "lr": 0.1, "precision": precision, "mode": given.pop("mode", "auto")},
        "algorithm": {"name": "fedfv"},
        "stop": {"steps": 4},
    }
    return parse(raw | given | more, "test", precision)[0]


def test_what_the_processor_has_not_is_refused(tmp_path: Path) -> None:
    """As oneDNN does for recurrent layers where there are no units for bfloat16."""
    made = tmp_path / "mine.py"
    made.write_text(
        "import torch\n"
        "class Picky(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        out = super().forward(x.flatten(1))\n"
        "        if out.dtype == torch.bfloat16:\n"
        "            raise RuntimeError('no such primitive')\n"
        "        return out\n"
        "def picky(*, in_shape, n_classes) -> torch.nn.Module:\n"
        "    return Picky(64, n_classes)\n"
    )
    model = {"name": f"{made}:picky"}
    prepare(config("dense", "float32", model=model))
    with pytest.raises(ConfigError, match=r"train\.precision: .*on this machine: no such primitive; use"):
        prepare(config("dense", "bfloat16", model=model))


def precisions() -> list[str]:
    """Return the precisions that torch has from 2.9 on, those of cuDNN first."""
    cuda, cudnn, mkldnn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
    return [each.fp32_precision for each in (cudnn.conv, cudnn.rnn, cuda.matmul, mkldnn.matmul, mkldnn.conv)]


@pytest.fixture(
    params=["all", "mkldnn", "cuda.matmul", "mkldnn.matmul", "mkldnn.conv", "cudnn.conv", "cudnn"]
)
def newer(request: pytest.FixtureRequest) -> Iterator[str]:
    """A part of torch whose precision the caller has set as torch 2.9 and newer do."""
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("torch has no fp32_precision before 2.9")
    place = torch.backends
    for name in request.param.split(".") if request.param != "all" else ():
        place = getattr(place, name)
    before = place.fp32_precision
    place.fp32_precision = "ieee" if "cudnn" in request.param else "tf32"
    yield request.param
    place.fp32_precision = before
    torch.set_float32_matmul_precision("highest")  # or torch refuses to read what was set the older way
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_precisions_that_the_caller_has_set_the_newer_way_change_nothing(newer: str, precision: Any) -> None:
    told = precisions()
    with untouched():
        assert torch.get_float32_matmul_precision() == "highest"
        assert "tf32" not in precisions()[2:]
        with rounding(precision, GPU):
            assert [p == "tf32" for p in precisions()[:3]] == [precision == "tf32"] * 3
    assert [p.replace("none", "ieee") for p in precisions()] == [p.replace("none", "ieee") for p in told]


def rows_of(case: str, precision: str) -> tuple[torch.Tensor, np.ndarray]:
    setup = prepare(config(case, precision))
    bench, start, clients = Workbench(setup.bench, setup.data), setup.initial(), np.arange(6)
    rows = torch.empty(6, setup.network.P)
    still = np.zeros(6, dtype=np.int64)
    reports = bench.train(Cohort(clients, clients, still, still, np.ones(6), still), [start] * 6, rows)[0]
    assert rows.dtype == bench.flat.dtype == torch.float32
    assert np.array_equal(bench.trial_losses(start[None], clients, 0)[0], reports.loss_before)
    return rows, reports.loss_before


@pytest.mark.parametrize("case", MODELS)
def test_bfloat16_is_float32_but_for_eight_bits(case: str) -> None:
    (exact, losses), (coarse, rounded) = rows_of(case, "float32"), rows_of(case, "bfloat16")
    apart = ((coarse - exact).norm(dim=1) / exact.norm(dim=1)).numpy()
    assert (apart > 1e-4).all(), "it does something"
    assert (apart < 0.1).all()
    assert (losses != rounded).all()
    np.testing.assert_allclose(rounded, losses, rtol=0.01)


@pytest.mark.parametrize("case", MODELS)
def test_tf32_changes_nothing_where_there_is_none(case: str) -> None:
    assert torch.equal(rows_of(case, "tf32")[0], rows_of(case, "float32")[0])


def test_evaluations_and_audits_are_float32_whatever_clients_do(tmp_path: Path) -> None:
    setup = prepare(config("dense", "bfloat16"))
    coarse, start = Workbench(setup.bench, setup.data), setup.initial()
    exact = Workbench(prepare(config("dense", "float32")).bench, setup.data)
    rows = len(setup.data.test.indices)
    for mine, theirs in zip(*(b.evaluate(start, "test", 0, rows) for b in (coarse, exact)), strict=True):
        assert np.array_equal(mine, theirs)
    clients = np.arange(10)
    models = torch.stack([start, 0.9 * start])
    assert np.array_equal(*(b.trial_losses(models, clients, None) for b in (coarse, exact)))
    assert not np.array_equal(*(b.trial_losses(models, clients, 0) for b in (coarse, exact)))


def test_a_run_in_bfloat16_repeats_on_threads_and_says_so(tmp_path: Path) -> None:
    more = {"model": {"name": "mlp", "hidden": [200, 200]}, "audit": {"every": 2, "clients": 3}}
    digests = set()
    for count in (1, 2):
        with at_most(count):
            done = simulate(config("dense", "bfloat16", **more), out=tmp_path / str(count), workers=0)[0]
        digests.add(done.digest)
    exact = simulate(config("dense", "float32", **more), out=tmp_path, workers=0)[0]
    assert len(digests) == 1
    assert exact.digest not in digests
    assert 'precision = "bfloat16"' in (done.folder / "config.resolved.toml").read_text()
    ends = [analysis.open_run(run.folder).final() for run in (done, exact)]
    assert abs(np.subtract(*(e.correct.sum() / e.n.sum() for e in ends))) < 0.1


@pytest.fixture
def flags() -> Iterator[None]:
    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    yield
    for place, allowed in zip(places, before, strict=True):
        place.allow_tf32 = allowed


def test_a_gpu_is_told_meanwhile_whether_it_may_round(flags: None) -> None:
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn

    def fails(precision: Precision) -> None:
        with rounding(precision, GPU):
            told.append((products.allow_tf32, convolutions.allow_tf32))
            raise KeyError

    for before in (False, True):
        products.allow_tf32 = convolutions.allow_tf32 = before
        told: list[tuple[bool, bool]] = []
        for precision in PRECISIONS:
            with pytest.raises(KeyError):
                fails(precision)
            assert products.allow_tf32 == convolutions.allow_tf32 == before
            with rounding(precision, CPU):
                assert products.allow_tf32 == convolutions.allow_tf32 == before
        assert told == [(False, False), (True, True), (False, False)]


def repeats() -> tuple[bool, bool, int, bool]:
    convolutions, memory = torch.backends.cudnn, torch.utils.deterministic
    return (
        convolutions.deterministic,
        convolutions.benchmark,
        torch.get_deterministic_debug_mode(),
        memory.fill_uninitialized_memory,
    )


def test_a_gpu_is_told_meanwhile_to_repeat_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = repeats()
    assert before == (False, True, 0, True)

    def fails(device: torch.device) -> None:
        with rounding("float32", device):
            told.append(repeats())
            raise KeyError

    told: list[tuple[bool, bool, int, bool]] = []
    for device in (CPU, GPU):
        with pytest.raises(KeyError):
            fails(device)
        assert repeats() == before
    assert told == [before, (True, False, 1, False)]


@pytest.mark.parametrize("said", [None, ":16:8"])
def test_cublas_is_told_before_it_starts(said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.setenv(name, "")  # so that it is restored
    monkeypatch.delenv(name)
    assert device_named("cpu") == CPU
    assert name not in os.environ
    if said is not None:
        monkeypatch.setenv(name, said)
    assert device_named("cuda") == GPU
    assert os.environ[name] == (said or ":4096:8")


def test_only_bfloat16_is_cast() -> None:
    x = torch.ones(2, 2)
    for precision, kind in (
        ("float32", torch.float32),
        ("tf32", torch.float32),
        ("bfloat16", torch.bfloat16),
    ):
        with lowered(precision, CPU):  # type: ignore[arg-type]
            assert (x @ x).dtype == kind


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.precision: .*'float32', 'tf32' or 'bfloat16'.*bf16"):
        config("dense", "bf16")
