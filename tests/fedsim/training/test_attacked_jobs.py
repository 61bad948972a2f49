"""What attacks do to rows and reports, in each mode of training; honest clients are left alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.data.federated_data import FederatedData
from fedsim.training.attack import Adversary
from fedsim.training.job import Cohort, Reports
from fedsim.training.settings import LocalSGD, WorkbenchSpec
from fedsim.training.workbench import Workbench
from noise import noise

K, CLASSES = 9, 10
BAD = (1, 4, 5)
MODES = ("loop", "vmap", "dense")
Row = torch.Tensor | None


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return noise(K, (5, 30), 4, CLASSES)


def bench(data: FederatedData, mode: Any, *adversaries: Adversary, **changes: Any) -> Workbench:
    sgd = LocalSGD(batch_size=8, lr=0.1)
    spec = WorkbenchSpec(
        "mlp", {"hidden": [8]}, (1, 4, 4), CLASSES, sgd, seed=3, losses=True, after=True, mode=mode
    )
    return Workbench(dataclasses.replace(spec, adversaries=adversaries, **changes), data)


def by(name: str, clients: tuple[int, ...] = BAD, **options: Any) -> Adversary:
    return Adversary(name, options, clients)


def cohort(nth: int = 0) -> Cohort:
    k = np.arange(K)
    return Cohort(k + nth * K, k, 0 * k + nth, 0 * k + nth, np.ones(K), 0 * k)


def trained(
    made: Workbench, jobs: Cohort, kept: Sequence[Row] | None = None
) -> tuple[torch.Tensor, Reports, list[Row]]:
    start, rows = made.network.initial(int(jobs.versions[0])), torch.empty(len(jobs), made.network.P)
    reports, after = made.train(jobs, [start] * len(jobs), rows, kept)
    return rows, reports, after


def equal(some: torch.Tensor, others: torch.Tensor) -> None:
    torch.testing.assert_close(some, others, rtol=0, atol=0)


def honest_ones() -> list[int]:
    return [c for c in range(K) if c not in BAD]


EXPECTED = {
    "scale": (by("scale", factor=-4.0), lambda row: row * -4.0),
    "sign_flip": (by("sign_flip"), lambda row: -row),
    "zero": (by("zero"), torch.zeros_like),
    "loss_bias": (by("loss_bias", bias=2.0), lambda row: row),
    "drop": (by("drop"), lambda row: row),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("adversary", "expected"), EXPECTED.values(), ids=EXPECTED.keys())
def test_rows_of_attackers_alone_are_changed(
    data: FederatedData, mode: str, adversary: Any, expected: Any
) -> None:
    rows, reports, _ = trained(bench(data, mode), cohort())
    sent, told, _ = trained(bench(data, mode, adversary), cohort())
    for client in range(K):
        equal(sent[client], expected(rows[client]) if client in BAD else rows[client])
    for name in ("loss_before", "loss_train", "loss_rms", "batch_rms", "loss_after"):
        bias = np.isin(np.arange(K), BAD) * (2.0 if adversary.name == "loss_bias" else 0.0)
        np.testing.assert_allclose(getattr(told, name), getattr(reports, name) + bias, rtol=1e-12)
    np.testing.assert_array_equal(told.accuracy_after, reports.accuracy_after)


@pytest.mark.parametrize("mode", MODES)
def test_flipped_labels_train_as_if_the_data_were_so(data: FederatedData, mode: str) -> None:
    """With other labels in the data themselves an honest client finds the same; who is honest sees the true ones."""
    table = np.arange(CLASSES)
    table[[3, 7]] = 7, 3
    for flip, y in (
        (by("label_flip"), CLASSES - 1 - data.y),
        (by("label_flip", change=[[3, 7], [7, 3]]), table[data.y]),
    ):
        sent, told, _ = trained(bench(data, mode, flip), cohort())
        wrong, found, _ = trained(bench(dataclasses.replace(data, y=y), mode), cohort())
        right, reports, _ = trained(bench(data, mode), cohort())
        equal(sent[list(BAD)], wrong[list(BAD)])
        equal(sent[honest_ones()], right[honest_ones()])
        np.testing.assert_array_equal(told.loss_before[list(BAD)], found.loss_before[list(BAD)])
        np.testing.assert_array_equal(told.loss_after[honest_ones()], reports.loss_after[honest_ones()])


def test_evaluation_sees_the_true_labels(data: FederatedData) -> None:
    fair, flipped = bench(data, "loop"), bench(data, "loop", by("label_flip"))
    trained(flipped, cohort())
    start, n = fair.network.initial(0), len(data.test.indices)
    np.testing.assert_array_equal(
        flipped.evaluate(start, "test", 0, n)[1], fair.evaluate(start, "test", 0, n)[1]
    )


IN_PLACE = """
from fedsim.training.attack import Attack

def flip() -> Attack:
    def labels(y, classes):
        y[:] = classes - 1 - y
        return y
    return Attack(labels=labels)
"""


def test_an_attack_that_changes_labels_in_place_leaves_the_data_as_they_are(
    data: FederatedData, tmp_path: Path
) -> None:
    (file := tmp_path / "flip.py").write_text(IN_PLACE)
    before = data.y.copy()
    sent, told, _ = trained(bench(data, "loop", by(f"{file}:flip")), cohort())
    flipped, reports, _ = trained(bench(data, "loop", by("label_flip")), cohort())
    np.testing.assert_array_equal(data.y, before)
    equal(sent, flipped)
    np.testing.assert_array_equal(told.loss_after, reports.loss_after)


@pytest.mark.parametrize("mode", MODES)
def test_a_replayed_row_is_the_honest_one_of_the_job_before(data: FederatedData, mode: str) -> None:
    """Also where another attack changed what was sent then; and only attackers keep anything."""
    made = bench(data, mode, by("replay"), by("scale", factor=2.0))
    honest = [trained(bench(data, mode), cohort(nth))[0] for nth in range(3)]
    kept: list[Row] = [None] * K
    for nth in range(3):
        sent, _, kept = trained(made, cohort(nth), kept)
        equal(sent[list(BAD)], 2.0 * honest[max(nth - 1, 0)][list(BAD)])
        equal(sent[honest_ones()], honest[nth][honest_ones()])
        assert [c for c in range(K) if kept[c] is not None] == list(BAD)


SENDER = """
from fedsim.training.client_method import ClientMethod, Trained

def sender() -> ClientMethod:
    def train(local, start, kept):
        end, loss = local.sgd(start)
        return Trained(end, loss, sent={"v": start - end})
    return ClientMethod(train, sends=("v",), draws=False)
"""


def test_what_is_replayed_is_the_update_without_the_vectors_beside_it(
    data: FederatedData, tmp_path: Path
) -> None:
    (tmp_path / "sender.py").write_text(SENDER)
    made = bench(data, "loop", by("replay"), client=f"{tmp_path}/sender.py:sender")
    kept: list[Row] = [None] * K
    sent, P = [], made.network.P
    for nth in range(2):
        jobs, rows = cohort(nth), torch.empty(K, made.columns)
        _, kept = made.train(jobs, [made.network.initial(nth)] * K, rows, kept)
        sent.append(rows)
    equal(sent[1][list(BAD), :P], sent[0][list(BAD), :P])
    assert not torch.equal(sent[1][list(BAD), P:], sent[0][list(BAD), P:])


@pytest.mark.parametrize("mode", MODES)
def test_a_client_depends_on_nobody_else(data: FederatedData, mode: str) -> None:
    made = bench(
        data,
        mode,
        by("label_flip", (0, 1)),
        by("gaussian_noise", (1, 2, 4)),
        Adversary("scale", {"factor": 3.0}, (1, 5), chance=0.5),
    )
    rows, reports, _ = trained(made, cohort())
    order = np.random.default_rng(1).permutation(K)
    for part in (order[:2], order[2:], order[::-1]):
        some, told, _ = trained(made, cohort().part(part))
        equal(some, rows[torch.from_numpy(part.copy())])
        np.testing.assert_array_equal(told.loss_train, reports.loss_train[part])


@pytest.mark.parametrize("per", ["norm", "entry"])
def test_noise_is_as_long_as_it_says(data: FederatedData, per: str) -> None:
    rows, _, _ = trained(bench(data, "dense"), cohort())
    sent, _, _ = trained(bench(data, "dense", by("gaussian_noise", sigma=2.0, per=per)), cohort())
    instead, _, _ = trained(
        bench(data, "dense", by("gaussian_noise", sigma=2.0, per=per, replace=True)), cohort()
    )
    noise, size = (sent - rows).norm(dim=1), rows.norm(dim=1)
    expected = 2.0 * (size if per == "norm" else rows.shape[1] ** 0.5 * torch.ones(K))
    for client in BAD:
        assert float(noise[client] / expected[client]) == pytest.approx(1, abs=0.2)
        torch.testing.assert_close(sent[client] - rows[client], instead[client], rtol=1e-3, atol=1e-5)
    again, _, _ = trained(bench(data, "dense", by("gaussian_noise", sigma=2.0, per=per)), cohort())
    equal(again, sent)
    other, _, _ = trained(bench(data, "dense", by("gaussian_noise", sigma=2.0, per=per)), cohort(1))
    assert not torch.equal(other, sent)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_rows_that_are_no_numbers_are_reported_as_such(data: FederatedData, value: str) -> None:
    sent, told, _ = trained(bench(data, "dense", by("nan", value=value, entries=3)), cohort())
    assert (~told.finite).nonzero()[0].tolist() == list(BAD)
    assert int((~sent.isfinite()).sum()) == 3 * len(BAD)


def test_what_repairs_a_row_makes_it_finite_again(data: FederatedData) -> None:
    _, told, _ = trained(bench(data, "dense", by("nan"), by("zero")), cohort())
    assert told.finite.all()


def test_order_matters(data: FederatedData) -> None:
    noise, scale = by("gaussian_noise", sigma=1.0, per="entry"), by("scale", factor=10.0)
    first, _, _ = trained(bench(data, "loop", noise, scale), cohort())
    last, _, _ = trained(bench(data, "loop", scale, noise), cohort())
    assert float((first - last)[list(BAD)].norm()) > 1
    equal(first[honest_ones()], last[honest_ones()])
