"""A share of the local work is the beginning of the whole."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from fedsim.data.federated_data import FederatedData
from fedsim.data.split import Division, federate
from fedsim.data.tasks.digits import digits
from fedsim.training.job import Job
from fedsim.training.local_sgd import ClientTools, Descent
from fedsim.training.network import build_network
from fedsim.training.settings import LocalSGD, WorkbenchSpec
from fedsim.training.workbench import Workbench

SPEC = WorkbenchSpec(
    model="mlp",
    model_options={"hidden": [8]},
    in_shape=(1, 8, 8),
    n_classes=10,
    sgd=LocalSGD(),
    seed=3,
    losses=False,
)
WHOLE = Job(id=9, client=4, nth=2, version=1)
SETTINGS = [
    LocalSGD(epochs=3, batch_size=7, lr=0.1, lr_decay=0.9),
    LocalSGD(epochs=2, batch_size=10, lr=0.1, momentum=0.9, weight_decay=0.01),
    LocalSGD(epochs=4, batch_size=None, lr=0.1),
]


@pytest.fixture(scope="module")
def data() -> FederatedData:
    task = digits(clients=20, seed=0, data_dir=None)
    return federate(
        task,
        n_clients=20,
        partitioner="iid",
        options={"sizes": "lognormal"},
        division=Division(fractions=(0.7, 0.1, 0.2)),
        seed=0,
    )


def row_of(data: FederatedData, sgd: LocalSGD, job: Job, client: str = "plain") -> torch.Tensor:
    params = build_network("mlp", {"hidden": [8]}, (1, 8, 8), 10).initial(0)
    row = torch.empty_like(params)
    Workbench(dataclasses.replace(SPEC, sgd=sgd, client=client), data).work(job, params, row)
    return row


def steps_of(data: FederatedData, sgd: LocalSGD) -> int:
    n = int(data.train.sizes[WHOLE.client])
    return sgd.epochs * math.ceil(n / (sgd.batch_size or n))


@pytest.mark.parametrize("sgd", SETTINGS, ids=str)
def test_a_share_of_the_steps_is_training_stopped_after_them(data: FederatedData, sgd: LocalSGD) -> None:
    """The oracle stops by the other door, the most steps that a client-side method may ask for."""
    start = build_network("mlp", {"hidden": [8]}, (1, 8, 8), 10).initial(0)
    steps, seen = steps_of(data, sgd), set()
    for k in range(1, steps + 1):
        bench = Workbench(dataclasses.replace(SPEC, sgd=sgd), data)
        bench.flat.copy_(start)
        ClientTools(bench, WHOLE).descend(Descent(sgd, most_steps=k))
        for share in (k / steps, (k + 0.5) / steps)[: 1 + (k < steps)]:
            row = row_of(data, sgd, dataclasses.replace(WHOLE, share=share))
            assert torch.equal(row, start - bench.flat), f"{k} of {steps} steps"
        seen.add(float(row.norm()))
    assert len(seen) == steps, "each step counts"


@pytest.mark.parametrize("sgd", SETTINGS, ids=str)
def test_whole_epochs_are_training_for_fewer_epochs(data: FederatedData, sgd: LocalSGD) -> None:
    for epochs in range(1, sgd.epochs + 2):
        part = row_of(data, sgd, dataclasses.replace(WHOLE, share=epochs / sgd.epochs))
        assert torch.equal(part, row_of(data, dataclasses.replace(sgd, epochs=epochs), WHOLE))


def test_a_share_that_is_less_than_a_step_is_one_step(data: FederatedData) -> None:
    sgd = SETTINGS[0]
    rows = [row_of(data, sgd, dataclasses.replace(WHOLE, share=s)) for s in (1e-6, 1 / steps_of(data, sgd))]
    assert torch.equal(*rows)
    assert float(rows[0].norm()) > 0


def test_client_side_methods_do_a_share_as_well(data: FederatedData) -> None:
    sgd = SETTINGS[0]
    part = row_of(data, sgd, dataclasses.replace(WHOLE, share=1 / 3), "fedprox")
    assert torch.equal(part, row_of(data, dataclasses.replace(sgd, epochs=1), WHOLE, "fedprox"))


@pytest.mark.parametrize(("most", "share", "steps"), [(5, 0.25, 3), (2, 0.25, 2), (2, 1.0, 2)])
def test_a_method_s_most_steps_and_the_share_both_hold(
    data: FederatedData, most: int, share: float, steps: int
) -> None:
    sgd = LocalSGD(epochs=3, batch_size=7, lr=0.1)
    assert math.floor(0.25 * steps_of(data, sgd)) == 3
    start = build_network("mlp", {"hidden": [8]}, (1, 8, 8), 10).initial(0)
    ends = []
    for job, allowed in ((dataclasses.replace(WHOLE, share=share), most), (WHOLE, steps)):
        local = ClientTools(Workbench(dataclasses.replace(SPEC, sgd=sgd), data), job)
        ends.append(local.sgd(start, most_steps=allowed)[0])
    assert torch.equal(*ends)


def test_what_layers_put_out_is_no_longer_listened_to_afterwards(data: FederatedData) -> None:
    local = ClientTools(Workbench(SPEC, data), WHOLE)
    _, found = local.features(local.weights, local.batch(local.rows[:5]).x, 2)
    assert [len(out) for out in found] == [5, 5]
    local.logits(local.weights, local.batch(local.rows[:3]).x)
    assert len(found) == 2


def test_a_model_is_all_its_parameters(data: FederatedData) -> None:
    local = ClientTools(Workbench(SPEC, data), WHOLE)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        local.logits(local.weights[:-1], local.batch(local.rows).x)
