"""What a run is said to need, and what is said when it needs too much."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import programs
from fedsim.algorithms.clients.ditto import ditto
from fedsim.algorithms.clients.fedcka import fedcka
from fedsim.common import machine
from fedsim.common.errors import ConfigError
from fedsim.common.units import show_bytes
from fedsim.engine.pacing import fedbuff, sync
from fedsim.runs import memory_estimate as memory
from fedsim.runs.build import prepare
from fedsim.runs.memory_estimate import Footprint
from fedsim.server.history_storage import HistoryPlan, HistorySize
from fedsim.server.spec import ServerSpec
from fedsim.training.client_method import ClientMethod
from small import small

SPEC = ServerSpec(
    "fedlf", {}, n_clients=1000, total_samples=10**5, most_updates=10, blocks=[(0, 900), (900, 1000)]
)
P = 64 * 8 + 8 + 8 * 10 + 10
"""Parameters of the small run's model."""


def test_the_parts_add_up() -> None:
    found = Footprint(SPEC, sync(10), data_bytes=10**6, trace_bytes=10**5, workers=0).parts()
    assert found["total"] == sum(n for part, n in found.items() if part != "total")
    assert found["history"] == 1010 * 4000
    assert found["gram"] == 2 * 1010**2 * 8
    assert found["solve"] == (2 + 4) * 1010**2 * 8
    assert found["data"] == 10**6


def test_each_process_and_thread_trains() -> None:
    one = Footprint(SPEC, sync(10), data_bytes=0, trace_bytes=0, workers=0, step_bytes=10**6)
    assert one.parts()["training"] == 10**6
    assert replace(one, threads=3).parts()["training"] == 3 * 10**6
    assert replace(one, workers=4, threads=3).parts()["training"] == 4 * 10**6
    assert dict(one.savings())["half of train.batch_size"] == 10**6 // 2


@pytest.mark.parametrize(("mode", "clients"), [("dense", 4), ("loop", 1)])
@pytest.mark.parametrize("batch_size", [10, "full"])
def test_a_step_of_training_takes_what_the_backward_pass_needs(
    mode: str, clients: int, batch_size: int | str
) -> None:
    """The backward pass needs 64 pixels and the outputs of 8 units of a sample."""
    spec = prepare(small(train={"batch_size": batch_size, "mode": mode}))
    width = 10 if batch_size == 10 else int(spec.data.train.sizes.max())
    expected = 2 * width * 4 * (64 + 8) + 5 * 4 * P
    assert spec.footprint(0).step_bytes == clients * expected


def test_momentum_and_terms_of_the_client_method_take_a_vector_each() -> None:
    def taken(**tables: Any) -> int:
        return prepare(small(**tables)).footprint(0).step_bytes

    sgd = {"batch_size": 10}
    plain = taken(train=sgd)
    assert taken(train=sgd | {"momentum": 0.9}) == plain + 4 * 4 * P
    assert taken(train=sgd, client={"name": "fedprox", "mu": 0.1}) == plain + 4 * 4 * P
    assert taken(train=sgd, client={"name": "ditto_global", "lam": 0.1}) > plain


TRAINED = """
import numpy as np, torch
from fedsim.common import machine
from fedsim.config.load import parse
from fedsim.runs.build import prepare
from fedsim.training.job import Cohort, Job
from fedsim.training.workbench import Workbench

raw = {
    "task": {"name": "digits", "clients": 2}, "partition": {"name": "iid"},
    "world": {"scenario": "always_on"}, "pacing": {"preset": "sync", "clients": 2}, "stop": {"steps": 1},
    "model": {"name": "cnn", "channels": [64, 128], "hidden": [16]}, "train": {"batch_size": "full"},
}
[config] = parse(raw, "x.toml", "x")
spec = prepare(config)
bench = Workbench(spec.bench, spec.data)
jobs, start = Cohort.of([Job(i, i, 0, 0) for i in range(2)]), spec.initial()
torch.ones(8, requires_grad=True).sum().backward()
machine.forget_peak()
before = machine.peak_bytes()
bench.train(jobs, [start] * 2, torch.zeros(2, bench.columns))
print(machine.peak_bytes() - before, spec.footprint(0).step_bytes)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="this system does not forget a peak")
def test_a_step_of_training_takes_about_what_is_estimated(tmp_path: Path) -> None:
    done = programs.python(TRAINED, tmp_path)
    assert done.code == 0, done.err
    took, estimated = map(int, done.out.split())
    assert estimated > 50 * 2**20
    assert took / 2 < estimated < took * 2, (took, estimated)


def test_updates_for_a_selector_cost_a_history_more() -> None:
    both = replace(SPEC, updates=HistoryPlan(10, 1000))
    plain, more = (Footprint(spec, sync(10), data_bytes=0, trace_bytes=0, workers=0) for spec in (SPEC, both))
    assert more.parts()["history"] == 2 * plain.parts()["history"]
    assert more.parts()["gram"] == 3 * 1010**2 * 8, "two blocks of the rule, one of the selector"
    saved = dict(more.savings())
    assert saved["memory.history = 'bfloat16'"] == 2 * dict(plain.savings())["memory.history = 'bfloat16'"]
    assert saved["memory.slots = 500"] > dict(plain.savings())["memory.slots = 500"]
    on_gpu = replace(more, server=replace(both, device="cuda"))
    assert on_gpu.on_gpu()["history"] == 2 * 1010 * 4000
    halved = replace(more, server=replace(both, n_clients=500)).parts()["history"]
    assert halved == 2 * 510 * 4000, "there are no more updates than clients"


def test_every_part_is_on_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "memory.md").read_text(encoding="utf-8")
    for part in set(Footprint(SPEC, sync(10), data_bytes=0, trace_bytes=0, workers=0).parts()) - {"total"}:
        assert re.search(rf"^\|[^|]*`{part}`[^|]*\|", page, re.MULTILINE), part


def test_workers_and_old_versions_cost_memory() -> None:
    inline = Footprint(SPEC, sync(10), data_bytes=0, trace_bytes=0, workers=0).parts()
    two = Footprint(SPEC, sync(10), data_bytes=0, trace_bytes=0, workers=2).parts()
    buffered = Footprint(SPEC, fedbuff(100, 10), data_bytes=0, trace_bytes=0, workers=0).parts()
    assert two["processes"] == 4 * inline["processes"], "the run's own, the server's and two workers"
    assert buffered["parameters"] > inline["parameters"]


def test_what_clients_keep_costs_memory() -> None:
    def kept(method: ClientMethod) -> int:
        found = Footprint(SPEC, sync(10), data_bytes=0, trace_bytes=0, workers=0, method=method).parts()
        return found["kept"]

    assert kept(ClientMethod()) == 0
    assert kept(fedcka()) == 1010 * 4000
    assert kept(ditto()) == 3010 * 4000


def test_of_replayed_updates_those_of_the_attackers_alone_cost_memory() -> None:
    def kept(**adversary: Any) -> int:
        setup = prepare(small(adversary={"name": "replay"} | adversary))
        return setup.footprint(0).parts()["kept"] // (4 * setup.network.P)

    assert kept(clients=[3]) == 2
    assert kept(share=0.5) == 6 + 4
    assert kept(share=1.0) == 12 + 4


def test_the_plan_of_the_history_decides_what_it_takes() -> None:
    def found(plan: HistoryPlan, server: ServerSpec = SPEC) -> tuple[int, int]:
        parts = Footprint(server, sync(10), data_bytes=0, trace_bytes=0, workers=0, history=plan).parts()
        return parts["history"], parts["gram"]

    assert found(HistoryPlan(10, 1000, "bfloat16")) == (10 * 4000 + 1000 * 2000, 2 * 1010**2 * 8)
    assert found(HistoryPlan(10, 90, "bfloat16", capped=True)) == (10 * 4000 + 90 * 2000, 2 * 100**2 * 8)
    on_gpu = replace(SPEC, device="cuda")
    assert found(HistoryPlan(10, 1000, "bfloat16"), on_gpu)[0] == 0
    assert found(HistoryPlan(10, 1000, "host_bfloat16"), on_gpu)[0] == 1000 * 2000


def test_diagnoses_of_conflicts_cost_a_gram_matrix() -> None:
    plain = replace(SPEC, rule="fedavg")
    assert memory.history_size(plain) == HistorySize(present=10, remembered=0, columns=1000, layers=0)
    assert memory.history_size(replace(plain, conflicts="model")).layers == 1
    assert memory.history_size(replace(plain, conflicts="blocks")).layers == 2
    both = replace(plain, rule="fedfv", conflicts="blocks")
    assert memory.history_size(both).layers == 3, "the rule's own beside those of the layers"


WHOLE = Footprint(SPEC, fedbuff(100, 10), data_bytes=10**6, trace_bytes=10**5, workers=4)


@pytest.mark.parametrize(
    ("footprint", "expected"),
    [
        (WHOLE, "--workers 2"),
        (replace(WHOLE, data_bytes=2**35), "half of the samples"),
        (replace(WHOLE, trace_bytes=2**35), "half of world.horizon"),
        (replace(WHOLE, server=replace(SPEC, blocks=[(0, 10**8)])), "a model of half the size"),
        (replace(WHOLE, server=replace(SPEC, n_clients=10**6)), "memory.slots = 500000"),
        (
            replace(WHOLE, server=replace(SPEC, most_updates=10**5), pacing=sync(10**5)),
            "50000 clients at once in [pacing]",
        ),
    ],
)
def test_what_helps_most_is_named_first(footprint: Footprint, expected: str) -> None:
    savings = footprint.savings()
    assert savings[0][0] == expected
    assert [n for _, n in savings] == sorted((n for _, n in savings), reverse=True)
    assert all(0 < n < footprint.parts()["total"] for _, n in savings)


def test_a_saving_is_what_the_change_makes() -> None:
    savings = dict(WHOLE.savings())
    parts = WHOLE.parts()
    assert savings["--workers 2"] == parts["total"] - replace(WHOLE, workers=2).parts()["total"]
    assert savings["memory.history = 'bfloat16'"] == 1000 * 2000
    assert savings["half of the samples"] == parts["data"] // 2
    rounded = replace(WHOLE, history=HistoryPlan(10, 1000, "bfloat16"))
    assert "memory.history = 'bfloat16'" not in dict(rounded.savings())
    without = Footprint(replace(SPEC, rule="fedavg"), sync(10), data_bytes=0, trace_bytes=0, workers=0)
    assert not {"memory.history = 'bfloat16'", "memory.slots = 0", "--workers 0"} & set(
        dict(without.savings())
    )


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    footprint = Footprint(SPEC, sync(10), data_bytes=2**31, trace_bytes=0, workers=0)
    found = footprint.parts()
    memory.check_fits(found, "fedlf", limit=found["total"])
    with pytest.raises(ConfigError) as refused:
        memory.check_fits(found, "fedlf", limit=2**30, helpful=footprint.savings)
    said = str(refused.value)
    assert said.startswith(
        "the run with rule 'fedlf' would need 2.7 GiB (parameters 7.8 KiB, history 3.9 MiB, "
    )
    assert "data 2.0 GiB" in said
    assert "but 1.0 GiB are free" in said
    first, second, third = footprint.savings()[:3]
    assert first == ("half of the samples", 2**30)
    assert said.endswith(
        f"What would help most: half of the samples (saves 1.0 GiB); {second[0]} (saves "
        f"{show_bytes(second[1])}); {third[0]} (saves {show_bytes(third[1])})"
    )


ON_GPU = replace(WHOLE, server=replace(SPEC, device="cuda"), workers=0)


def test_what_lies_on_the_gpu_of_the_server() -> None:
    assert WHOLE.on_gpu() == {}
    found = ON_GPU.on_gpu()
    assert found == {
        "history": 1010 * 4000,
        "parameters": 102 * 4000,
        "updates": 10 * 4000,
        "data": 10**6,
        "total": 1120 * 4000 + 4000 * 2 + 10**6,
    }
    for rung, remembered in (("bfloat16", 1000 * 2000), ("host_bfloat16", 0), ("host_float32", 0)):
        plan = HistoryPlan(10, 1000, rung)  # type: ignore[arg-type]
        assert replace(ON_GPU, history=plan).on_gpu()["history"] == 10 * 4000 + remembered
    assert replace(ON_GPU, workers=4).on_gpu() == {
        "history": 1010 * 4000,
        "parameters": 8000,
        "updates": 40_000,
        "data": 0,
        "total": 1022 * 4000,
    }


def test_a_gpu_that_is_too_small_is_said_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    total = ON_GPU.on_gpu()["total"]

    def has(free: int, cached: int = 0, whole: int = 2**40) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, whole))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: cached + 100)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 100)

    memory.check_fits_gpu(ON_GPU)  # where there is none, it is the business of another machine
    has(total)
    memory.check_fits_gpu(ON_GPU)
    has(total - 2**20, cached=2**20)  # what an earlier run of this process has let go
    memory.check_fits_gpu(ON_GPU)
    has(3 * 2**20)
    memory.check_fits_gpu(WHOLE)
    with pytest.raises(ConfigError) as refused:
        memory.check_fits_gpu(ON_GPU)
    assert str(refused.value) == (
        "the run with rule 'fedlf' would need 5.2 MiB on the GPU (history 3.9 MiB, parameters 398.4 KiB, updates "
        '39.1 KiB, data 976.6 KiB), but 3.0 MiB are free there. memory.budget = "1 MiB" leaves the rest enough room'
    )
    memory.check_fits_gpu(replace(ON_GPU, workers=4))
    has(0, whole=2**20)
    with pytest.raises(ConfigError, match=r"3.9 MiB on the GPU .* but 1.0 MiB .* \"1000576 B\""):
        memory.check_fits_gpu(replace(ON_GPU, workers=4))
    has(10**6)
    with pytest.raises(ConfigError, match="are free there, too little even without a history"):
        memory.check_fits_gpu(ON_GPU)


def test_the_peak_is_measured() -> None:
    assert machine.peak_bytes() > 50 * 2**20


SHARED = """
import os
import numpy as np
from fedsim.common import machine as memory

(reads, writes), (answers, answer) = os.pipe(), os.pipe()
held = np.ones(2**24)
before = memory.peak_share()
child = os.fork()
if not child:
    os.write(answer, str(memory.peak_share()).encode())
    os.read(reads, 1)
    os._exit(0)
its, mine = os.read(answers, 100).decode(), memory.peak_share()
os.write(writes, b"x")
os.waitpid(child, 0)
print(before - mine, its, held.nbytes)
"""


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="this system does not tell what is shared"
)
def test_pages_of_several_processes_are_shared_among_them(tmp_path: Path) -> None:
    done = programs.python(SHARED, tmp_path)
    assert done.code == 0, done.err
    less, its, held = map(int, done.out.split())
    assert less > 0.4 * held, "the other half is the child's"
    assert its > 0.4 * held
