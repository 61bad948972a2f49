"""What a GPU computes: on one that is pretended, bit for bit what the processor does, and on a real one nearly so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim import analysis, plugins
from fedsim.config.run import RunConfig
from fedsim.data.federated_data import FederatedData
from fedsim.runs.resume import resume
from fedsim.server.server import Server
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.training.job import Report, Reports
from fedsim.training.modes import dense
from here import PoolHere
from interrupted_runs import stopped_at
from noise import noise
from pretend_gpu import Event, pretended
from small import run, small
from workbenches import bench, cohort

Gpu = list[Event] | None
"""What happened between the pretended GPU and the processor; nothing is known of a real one."""
GROUPED = [
    "softmax",
    "mlp",
    "full batch",
    "momentum",
    "augmented",
    "decay",
    "some losses",
    "large, some losses",
]
FEDBUFF = {"preset": "fedbuff", "concurrency": 5, "buffer": 3}
MEDIAN = {"name": "coordinate_median", "wrap": [{"name": "with_absent"}]}
RUNS: dict[str, dict[str, Any]] = {
    "late rows": {"pacing": {"preset": "sync", "clients": 4, "late": "history"}},
    "fedbuff": {"pacing": FEDBUFF, "algorithm": {"name": "fedfv"}},
    "line search": {"algorithm": {"name": "fedmdfg"}},
    "losses": {"algorithm": {"name": "qfedavg"}, "train": {"batch_size": 40, "loss_samples": 5}},
    "state of the server": {
        "algorithm": {"name": "fedavg", "wrap": [{"name": "server_opt"}]},
        "pacing": FEDBUFF,
    },
    "layer by layer": {"algorithm": {"name": "fedfv", "wrap": [{"name": "layerwise"}]}},
    "audit": {"audit": {"every": 2}},
    "column by column": {
        "algorithm": MEDIAN,
        "record": {"conflicts": "layers"},
    },
    "convolutions": {"model": {"name": "cnn", "channels": [4, 4], "hidden": [8]}},
    "dropout": {  # whose masks a real GPU draws otherwise than the processor
        "model": {"name": "cnn", "channels": [4, 4], "hidden": [8], "dropout": [0.1, 0.2]},
    },
}
SHORTER: dict[str, Any] = {"stop": {"steps": 2}, "train": {"batch_size": 100}}


def _with_rule(client: str) -> dict[str, Any]:
    """Return the rule that a client method needs, if it needs one."""
    rule = plugins.build("client", client, {}).rule
    return {"algorithm": {"name": rule}} if rule else {}


RUNS |= {
    f"client {name}": {"client": {"name": name}, **_with_rule(name), **SHORTER}
    for name in plugins.names("client")
    if name != "plain"
}
RUNS |= {
    f"unseen clients of {name}": {
        "client": {"name": name},
        "task": {"name": "digits", "clients": 12, "unseen": 3},
        **SHORTER,
    }
    for name in ("ditto", "qmaml")
}
RUNS |= {
    f"attack {name}": {"adversary": [{"name": name, "clients": [0, 1, 2]}], **SHORTER}
    for name in plugins.names("adversary")
}


@pytest.fixture(params=["pretended", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A GPU, pretended or real."""
    if request.param == "real":
        yield None
    else:
        with pretended(monkeypatch) as log:
            yield log


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return noise(12, (1, 30), 8, 10)


def assert_alike(found: torch.Tensor, expected: torch.Tensor, gpu: Gpu) -> None:
    """Assert that numbers are those of the processor, but for the rounding of a real GPU."""
    assert found.device.type == "cuda"
    near = {"rtol": 1e-3, "atol": 1e-4} if gpu is None else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(found.cpu(), expected, **near)


@pytest.mark.parametrize(
    ("mode", "shape"),
    [(mode, shape) for mode in ("vmap", "dense") for shape in GROUPED] + [("loop", "momentum")],
)
def test_clients_train_as_on_the_processor(gpu: Gpu, data: FederatedData, mode: str, shape: str) -> None:
    jobs, found, told = cohort(7), {}, {}
    for device in ("cpu", "cuda"):
        made = bench(data, shape, mode, losses=True, after=True, device=device)
        starts = [made.network.initial(version).to(device) for version in range(2)]
        found[device] = torch.empty(7, made.network.P, device=device)
        mine = [starts[version] for version in jobs.versions.tolist()]
        told[device] = made.train(jobs, mine, found[device])[0]
    assert_alike(found["cuda"], found["cpu"], gpu)
    for name in ("loss_before", "loss_train", "loss_after", "accuracy_after"):
        there, here = (getattr(told[device], name) for device in ("cuda", "cpu"))
        np.testing.assert_allclose(there, here, rtol=1e-3, atol=1e-4, err_msg=name)


def short(steps: int = 3, **changes: Any) -> RunConfig:
    """Return a run of few steps and large minibatches: each operation takes long where the GPU is pretended."""
    return small(**({"stop": {"steps": steps}, "train": {"batch_size": 40}} | changes))


def assert_same_run(there: Path, here: Path, gpu: Gpu) -> None:
    """Assert that two runs evaluated to the same, and remembered, moved and conflicted as much."""
    a, b = (analysis.open_run(folder) for folder in (there, here))
    for table in ("steps", "evals"):
        mine, other = a.frame(table), b.frame(table)
        assert len(mine) == len(other) > 0
        numbers = [c for c in mine if mine[c].dtype.kind == "f" and c not in ("wall_s",)]
        near = 1e-6 if gpu is not None else 0.05
        np.testing.assert_allclose(mine[numbers], other[numbers], rtol=near, atol=near, err_msg=table)


@pytest.mark.parametrize("case", [case for case in RUNS if case != "dropout"])
def test_a_run_is_that_of_the_processor(gpu: Gpu, case: str, tmp_path: Path) -> None:
    config = short(**RUNS[case])
    there = run(config, tmp_path / "there", device="cuda").folder
    assert_same_run(there, run(config, tmp_path / "here", device="cpu").folder, gpu)


@pytest.mark.parametrize("rung", ["host_float32", "bfloat16", "host_bfloat16"])
@pytest.mark.parametrize("algorithm", [{"name": "fedlf"}, MEDIAN], ids=["by weights", "by column"])
def test_remembered_rows_may_lie_elsewhere(
    gpu: Gpu, algorithm: dict[str, Any], rung: str, tmp_path: Path
) -> None:
    config = short(memory={"history": rung}, algorithm=algorithm)
    there = run(config, tmp_path / "there", device="cuda").folder
    plain = short(memory={"history": rung.removeprefix("host_")}, algorithm=algorithm)
    assert_same_run(there, run(plain, tmp_path / "here", device="cpu").folder, gpu)


@pytest.mark.parametrize("case", ["late rows", "client ditto", "line search", "audit", "dropout"])
@pytest.mark.usefixtures("gpu")
def test_more_processes_compute_the_same_bits(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = short(**RUNS[case])
    pool: Any = PoolHere(2, monkeypatch)
    split = run(config, tmp_path / "split", device="cuda", workers=pool)
    assert split.digest == run(config, tmp_path / "alone", device="cuda").digest


@pytest.mark.parametrize("case", ["client ditto", "dropout"])
@pytest.mark.usefixtures("gpu")
def test_a_killed_run_goes_on_with_the_same_bits(case: str, tmp_path: Path) -> None:
    config = short(**(RUNS[case] | {"checkpoint": {"every_steps": 1}, "stop": {"steps": 3}}))
    folder = stopped_at(2, config, tmp_path / "killed", device="cuda")
    again = resume(folder, workers=0, device="cuda")
    assert again.status == "done"
    assert again.digest == run(config, tmp_path / "whole", device="cuda").digest


@pytest.mark.parametrize("rule", ["fedlf", "fedmgda_plus", "fedavg"])
def test_a_step_waits_as_often_for_any_number_of_layers_and_clients(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def events(layers: int, m: int) -> list[Event]:
        blocks = [(10 * i, 10 * i + 10) for i in range(layers)]
        spec = ServerSpec(rule, {}, 20, 100, m, blocks, device="cuda")
        made = Server(spec, torch.zeros(10 * layers))
        for step in range(3):
            log.clear()
            rows = torch.randn(m, 10 * layers, generator=torch.Generator().manual_seed(step))
            some = np.arange(m) + step
            told = Reports.of([Report(loss_before=1.0 + i) for i in range(m)])
            fresh, samples = np.zeros(m, dtype=np.int64), np.ones(m, dtype=np.int64)
            made.step(StepInput(step, some, fresh, samples, reports=told, online=some), rows.cuda())
        return list(log)

    with pretended(monkeypatch) as log:
        found = events(2, 3)
        assert events(9, 3) == events(2, 12) == found
        assert found.count("waited") <= 2, "for the inner products and for the length of the step"


@pytest.mark.parametrize("mode", ["vmap", "dense"])
def test_all_groups_are_sent_before_anybody_waits(
    mode: str, data: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretended(monkeypatch) as log:
        made = bench(data, "softmax", mode, device="cuda")
        start, rows = made.network.initial(0).cuda(), torch.empty(12, made.network.P).cuda()
        log.clear()
        made.train(cohort(12), [start] * 12, rows)
    groups, first = log.count("sent") // 3, log.index("waited")
    assert groups >= 2, "clients of different sizes"
    assert log[first:] == ["waited"] * (groups + 1), "for the losses of each, and for whether rows are finite"


@pytest.mark.parametrize("shape", ["softmax", "full batch", "some losses", "large, some losses"])
def test_each_product_is_for_as_many_clients(
    shape: str, data: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU may take another kernel for another number of matrices: then bits would depend on who else trains."""
    monkeypatch.setattr(dense, "_ON_A_GPU", (4, 4))
    seen: dict[Any, set[int]] = {}

    def spied(name: str) -> None:
        plain = getattr(torch, name)

        def product(*args: torch.Tensor) -> torch.Tensor:
            left, right = args[-2:]
            seen.setdefault((left.shape[1:], right.shape[1:]), set()).add(len(left))
            return plain(*args)

        monkeypatch.setattr(torch, name, product)

    with pretended(monkeypatch):
        made = bench(data, shape, "dense", losses=True, device="cuda")
        start = made.network.initial(0).cuda()
        spied("bmm")
        spied("baddbmm")
        for k in (1, 5, 12):
            made.train(cohort(k), [start] * k, torch.empty(k, made.network.P).cuda())
    assert seen
    assert all(len(counts) == 1 for counts in seen.values()), seen


@pytest.mark.parametrize(("mode", "most"), [("vmap", 16), ("dense", 128)])
def test_groups_are_wide_and_minibatches_as_they_are(
    mode: str, most: int, data: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's products are the same wherever a matrix begins: nobody need train alone, nor be padded."""
    odd = {"model": "mlp", "model_options": {"hidden": [5]}}
    with pretended(monkeypatch):
        beside = bench(data, "softmax", mode, device="cuda", **odd)._side_by_side
        full = bench(data, "full batch", mode, device="cuda")._side_by_side
    assert beside is not None
    assert full is not None
    assert (beside.limits.clients, beside.limits.width_multiple) == (most, 1)
    assert full.limits.clients == (1 if mode == "dense" else most), (
        "a whole set for each idle client would fill the memory"
    )


def test_what_is_in_the_wrong_place_is_refused_as_by_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the tests above would fail if there were such."""
    with pretended(monkeypatch) as log:
        there, here = torch.arange(6.0).cuda().view(2, 3), torch.ones(2, 3)
        with pytest.raises(RuntimeError, match="at least two devices"):
            there + here
        with pytest.raises(TypeError, match=r"Tensor\.cpu"):
            there.numpy()
        assert (there.cpu() + here).tolist() == [[1, 2, 3], [4, 5, 6]]
        assert float(there.sum()) == 15.0
    assert log == ["sent", "waited", "waited"]
