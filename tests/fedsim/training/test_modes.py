"""Three ways to train a group of clients, one contract."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsim.common.errors import ConfigError
from fedsim.data.federated_data import FederatedData, Split
from fedsim.training.augmentation import Augment
from fedsim.training.client_method import ClientMethod, Trained
from fedsim.training.job import Cohort, Job, Reports
from fedsim.training.minibatches import orders
from fedsim.training.modes import dense, may_draw, resolve_mode
from fedsim.training.modes.dense import (
    Dense,
    _padded,
    largest_group,
    must_train_alone,
    width_multiple_of,
)
from fedsim.training.modes.linear_layers import linear_layers
from fedsim.training.settings import LocalSGD, Mode, WorkbenchSpec
from fedsim.training.workbench import Workbench
from noise import noise
from workbenches import CLASSES, SHAPES, K, bench, cohort, trained


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return noise(K, (1, 60), 8, CLASSES)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["vmap", "dense"])
@pytest.mark.parametrize("same", [True, False], ids=["one start", "two starts"])
def test_a_group_is_the_loop_but_for_rounding(data: FederatedData, shape: str, mode: str, same: bool) -> None:
    by_one, reports = trained(bench(data, shape, "loop", losses=True, after=True), cohort(), same)
    by_group, told = trained(bench(data, shape, mode, losses=True, after=True), cohort(), same)
    coarse = 1 if SHAPES[shape][2].precision == "float32" else 100
    if coarse > 1:
        apart = (by_group - by_one).norm(dim=1) / by_one.norm(dim=1)
        assert apart.median() < 0.03
        assert apart.max() < 0.3, "a unit may die of a rounding"
    else:
        torch.testing.assert_close(by_group, by_one, rtol=1e-3, atol=2e-5)
    for name in ("loss_before", "loss_train", "loss_rms", "batch_rms", "loss_after"):
        np.testing.assert_allclose(
            getattr(told, name), getattr(reports, name), rtol=1e-4 * coarse, err_msg=name
        )
    np.testing.assert_allclose(told.accuracy_after, reports.accuracy_after, atol=0.05 if coarse == 1 else 0.2)
    assert told.finite.all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["loop", "vmap", "dense"])
def test_a_client_depends_on_nobody_else(data: FederatedData, shape: str, mode: str) -> None:
    k, draws = 24, np.random.default_rng(1)
    made, jobs = bench(data, shape, mode, losses=True), cohort(k)
    together, reports = trained(made, jobs)
    again, _ = trained(made, jobs)
    assert torch.equal(again, together), "the same twice"
    for _ in range(3):
        some = draws.permutation(k)[: draws.integers(1, k + 1)]
        rows, told = trained(made, jobs.part(some))
        assert torch.equal(rows, together[torch.from_numpy(some)])
        assert told.loss_train.tolist() == reports.loss_train[some].tolist()
        assert told.loss_rms.tolist() == reports.loss_rms[some].tolist()
        assert told.batch_rms.tolist() == reports.batch_rms[some].tolist()
        assert told.loss_before.tolist() == reports.loss_before[some].tolist()
    for i in range(0, k, 8):
        assert torch.equal(trained(made, jobs.part(slice(i, i + 1)))[0][0], together[i])


@pytest.mark.parametrize("mode", ["loop", "vmap", "dense"])
@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"epochs": 2}, False),
        ({"batch_size": 8}, False),
        ({"loss_samples": 5}, False),
        ({"augment": Augment(2, True)}, False),
    ],
    ids=["one full batch", "epochs", "minibatches", "some samples", "views"],
)
def test_the_loss_before_one_full_batch_is_that_of_training(
    data: FederatedData, mode: str, changes: dict[str, Any], same: bool
) -> None:
    sgd = LocalSGD(**{"batch_size": None, **changes})
    made, jobs = bench(data, "full batch", mode, sgd=sgd, losses=True), cohort()
    _, reports = trained(made, jobs)
    start = made.network.initial(0)[None]
    by_version = np.concatenate([made.trial_losses(start, jobs.clients, version) for version in range(2)])
    before = by_version[jobs.versions, np.arange(len(jobs))]
    np.testing.assert_allclose(reports.loss_before, before, rtol=1e-5)
    assert (reports.loss_before == reports.loss_train).all() == same


def unequal() -> FederatedData:
    """Return 320 samples of a client, of which each 8th or so is mislabelled, and 50 of another, in 8 features."""
    draws = np.random.default_rng(2)
    x = np.zeros((370, 8), dtype=np.float32)
    x[:, 0] = np.where(np.arange(370) < 320, 4.05, draws.normal(size=370))
    y = np.concatenate([np.arange(320) % 8 == 7, draws.random(50) < 0.5]).astype(np.int64)
    y[:16] = 0  # 38 of 320 are left
    rows = Split.of([np.arange(320), np.arange(320, 370)])
    return FederatedData(x, y, 2, rows, rows, rows)


@pytest.mark.parametrize("mode", ["loop", "vmap", "dense"])
def test_the_losses_of_a_client_are_those_of_its_samples(mode: Any) -> None:
    """38 samples lose log(1 + e^4.05) = 4.067 each, 282 lose log(1 + e^-4.05) = 0.017."""
    sgd = LocalSGD(batch_size=32, lr=0.0)
    spec = WorkbenchSpec("softmax", {}, (8,), 2, sgd, seed=3, losses=False, mode=mode)
    made = Workbench(spec, unequal())
    start = torch.zeros(made.network.P)
    start[0] = 1.0
    jobs = Cohort.of([Job(i, i, 0, 0) for i in range(2)])
    reports, _ = made.train(jobs, [start] * 2, torch.empty(2, made.network.P))
    hard, easy = math.log1p(math.exp(4.05)), math.log1p(math.exp(-4.05))
    assert reports.loss_rms[0] == pytest.approx(math.sqrt((38 * hard**2 + 282 * easy**2) / 320), rel=1e-5)
    assert reports.loss_train[0] == pytest.approx((38 * hard + 282 * easy) / 320, rel=1e-5)
    assert round(float(reports.loss_rms[0]), 2) == 1.4


@pytest.mark.parametrize("mode", ["loop", "vmap", "dense"])
@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("batch_size", [32, None])
def test_losses_are_those_of_each_sample_before_its_step(
    mode: Any, share: float, batch_size: int | None
) -> None:
    """Two epochs of logistic regression, written out in double precision; the last minibatch may be smaller."""
    data, sgd = unequal(), LocalSGD(batch_size=batch_size, epochs=2, lr=0.05)
    spec = WorkbenchSpec("softmax", {}, (8,), 2, sgd, seed=3, losses=False, mode=mode)
    made = Workbench(spec, data)
    start = torch.zeros(made.network.P)
    start[0] = 1.0
    jobs = Cohort.of([Job(i, i, 4, 0, share) for i in range(2)])
    reports, _ = made.train(jobs, [start] * 2, torch.empty(2, made.network.P))
    for client, n in enumerate((320, 50)):
        slope, level = np.array([1.0, 0.0]), np.zeros(2)
        size = batch_size or n
        steps = max(1, math.floor(share * 2 * math.ceil(n / size)))
        losses: list[Any] = []
        for epoch in range(2):
            one = (np.array([value]) for value in (client, 4, epoch, n))
            own = data.train.rows(client)[orders(3, "batches", *one)]
            for batch in np.split(own, range(size, n, size)):
                if len(losses) == steps:
                    break
                x, y = data.x[batch, 0].astype(np.float64), data.y[batch]
                logits = x[:, None] * slope + level
                p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
                losses.append(-np.log(p[np.arange(len(y)), y]))
                delta = (p - np.eye(2)[y]) / len(y)
                slope, level = slope - 0.05 * (x @ delta), level - 0.05 * delta.sum(axis=0)
        every = np.concatenate(losses)
        assert reports.loss_rms[client] == pytest.approx(math.sqrt((every**2).mean()), rel=1e-4)
        assert reports.batch_rms[client] == pytest.approx(math.sqrt((losses[-1] ** 2).mean()), rel=1e-4)
        assert reports.loss_train[client] == pytest.approx(every.mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("side", "hidden", "classes", "batch_size"),
    [
        (11, [], 2, 10),
        (3, [], 2, None),
        (8, [31], 10, 10),
        (3, [5], 2, 10),
        (8, [1], 10, None),
        (7, [16], 3, 1),
    ],
)
@pytest.mark.parametrize("mode", ["vmap", "dense"])
def test_the_place_of_a_client_changes_no_bit(
    mode: Any, side: int, hidden: list[int], classes: int, batch_size: int | None
) -> None:
    """Nor does it where matrices are no whole vectors of the processor, whose products depend on where they begin."""
    sgd = LocalSGD(batch_size=batch_size, lr=0.1)
    spec = WorkbenchSpec("mlp", {"hidden": hidden}, (1, side, side), classes, sgd, 3, losses=True, after=True)
    made = Workbench(dataclasses.replace(spec, mode=mode), noise(9, (20, 130), side, classes))
    jobs = cohort(9)
    together, reports = trained(made, jobs)
    for some in [*np.arange(9)[:, None], np.array([4, 2]), np.array([8, 7, 1, 0]), np.arange(2, 9)]:
        rows, told = trained(made, jobs.part(some))
        assert torch.equal(rows, together[torch.from_numpy(some)])
        for field in dataclasses.fields(Reports):
            assert getattr(told, field.name).tolist() == getattr(reports, field.name)[some].tolist()


@pytest.mark.parametrize("mode", ["loop", "vmap", "dense"])
def test_a_model_that_explodes_is_said_to_and_harms_nobody(data: FederatedData, mode: str) -> None:
    made, jobs = bench(data, "mlp", mode), cohort(6)
    starts = [made.network.initial(0)] * 6
    expected = torch.empty(6, made.network.P)
    made.train(jobs, starts, expected)
    starts[2] = starts[2] * float("inf")
    rows = torch.empty(6, made.network.P)
    reports = made.train(jobs, starts, rows)[0]
    assert reports.finite.tolist() == [True, True, False, True, True, True]
    others = [0, 1, 3, 4, 5]
    assert torch.equal(rows[others], expected[others])


@pytest.mark.parametrize("mode", ["loop", "vmap", "dense"])
def test_an_extreme_sample_spoils_the_updates_of_its_own_client_alone(mode: str) -> None:
    """It is the first one of the data, and other clients' last minibatches are short."""
    data, jobs = noise(K, (1, 60), 8, CLASSES), cohort()
    data.x[0] = math.inf
    owner = int(np.searchsorted(data.train.offsets, np.flatnonzero(data.train.indices == 0)[0], "right")) - 1
    _, reports = trained(bench(data, "mlp", mode), jobs)
    assert reports.finite.tolist() == (jobs.clients != owner).tolist()


@pytest.mark.parametrize("mode", ["vmap", "dense"])
def test_modes_agree_where_all_logits_are_equal(data: FederatedData, mode: str) -> None:
    """The rival of the hinge loss is then the first of the other classes."""
    tied: dict[str, Any] = {
        "model_options": {"zero_init": True},
        "sgd": LocalSGD(batch_size=8, lr=0.05, loss="hinge"),
    }
    by_group, by_one = (trained(bench(data, "softmax", each, **tied), cohort())[0] for each in (mode, "loop"))
    torch.testing.assert_close(by_group, by_one, rtol=1e-3, atol=2e-5)


def test_a_second_softmax_trains_side_by_side(data: FederatedData) -> None:
    twice = {"hidden": [32], "doubled_softmax": True}
    by_group, by_one = (
        trained(bench(data, "mlp", mode, model_options=twice), cohort())[0] for mode in ("vmap", "loop")
    )
    torch.testing.assert_close(by_group, by_one, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(("hidden", "calls"), [([16], 1), ([64], 12)])
def test_losses_of_a_small_model_are_found_for_many_clients_at_once(
    data: FederatedData, hidden: list[int], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one with less than 4,096 parameters."""
    made, seen = bench(data, "mlp", "dense", model_options={"hidden": hidden}), []
    spied = dense.losses_of
    monkeypatch.setattr(dense, "losses_of", lambda *given: seen.append(1) or spied(*given))
    found = made.trial_losses(made.network.initial(0)[None], np.arange(12), None)
    assert len(seen) == calls
    for client in range(12):
        expected = bench(data, "mlp", "loop", model_options={"hidden": hidden})
        rows = torch.from_numpy(data.train.rows(client))
        assert found[0, client] == pytest.approx(expected.losses(made.network.initial(0), rows).mean())


@pytest.mark.parametrize("shape", ["mlp", "large", "some losses"])
@pytest.mark.parametrize("mode", ["loop", "vmap", "dense"])
def test_losses_of_no_clients_are_none(data: FederatedData, shape: str, mode: str) -> None:
    made, nobody = bench(data, shape, mode, losses=True), np.zeros(0, dtype=np.int64)
    models = torch.stack([made.network.initial(version) for version in range(2)])
    for version in (0, None):
        assert made.trial_losses(models, nobody, version).shape == (2, 0)


def method(train: Any = None) -> ClientMethod:
    return ClientMethod(train=train)


def module(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *parts)


LINEAR = module(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
CONV = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2, 2))
DROPS = module(nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 2))


def test_auto_is_a_rule_of_model_method_and_device() -> None:
    assert resolve_mode("auto", LINEAR, method(), "cpu") == "dense"
    assert resolve_mode("auto", LINEAR, method(), "cuda") == "dense"
    assert resolve_mode("auto", CONV, method(), "cpu") == "loop"
    assert resolve_mode("auto", CONV, method(), "cuda:1") == "vmap"
    assert resolve_mode("auto", DROPS, method(), "cuda") == "loop"
    own = method(lambda local, start, kept: Trained(start, 0.0))
    assert resolve_mode("auto", LINEAR, own, "cuda") == "loop"


@pytest.mark.parametrize(
    ("wanted", "model", "message"),
    [
        ("dense", CONV, "not a sequence of Linear layers with ReLU between; take 'vmap' or 'loop'"),
        ("vmap", DROPS, r"may draw at random while it trains \(Dropout\); take 'loop'"),
        ("vmap", module(nn.LocalResponseNorm(2)), "LocalResponseNorm is not known to work with torch.func"),
    ],
)
def test_a_mode_that_cannot_be_is_refused_with_what_can(wanted: Any, model: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_mode(wanted, model, method(), "cpu")


class Own(nn.Module):
    """A module of somebody's own, which may do anything."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)


class Quiet(Own):
    """One that says it draws nothing."""

    draws = False


@pytest.mark.parametrize(
    ("model", "drawing"),
    [
        (CONV, ""),
        (nn.Sequential(nn.Linear(4, 2), nn.Softmax(dim=1)), ""),
        (nn.Sequential(nn.Linear(4, 2), nn.LogSoftmax(dim=1)), ""),
        (DROPS, "Dropout"),
        (Own(nn.Linear(4, 2)), "Own"),
        (Quiet(nn.Linear(4, 2), nn.LocalResponseNorm(2)), ""),
        (Quiet(nn.Linear(4, 2), nn.Dropout2d()), "Dropout2d"),
        (Quiet(nn.LSTM(4, 2, num_layers=2)), ""),
        (Quiet(nn.LSTM(4, 2, num_layers=2, dropout=0.1)), "LSTM"),
    ],
)
def test_who_may_draw_at_random(model: nn.Module, drawing: str) -> None:
    assert may_draw(model) == drawing


@pytest.mark.parametrize(
    ("columns", "gpu", "most"),
    [
        (1, False, 512),
        (1, True, 128),
        (20_000, False, 209),
        (20_000, True, 128),
        (120_000, True, 34),
        (10**6, False, 4),
        (10**6, True, 32),
        (10**8, False, 1),
    ],
)
def test_how_many_train_together(columns: int, gpu: bool, most: int) -> None:
    assert largest_group(columns, gpu) == most


@pytest.mark.parametrize("hidden", [[32], [200], [120, 120]])
def test_how_many_train_together_is_a_matter_of_parameters(data: FederatedData, hidden: list[int]) -> None:
    """Of 16 MiB each client takes 4 bytes a parameter."""
    made = bench(data, "mlp", "dense", model_options={"hidden": hidden})
    beside = made._side_by_side
    assert isinstance(beside, Dense)
    assert beside.limits.clients == min(512, 2**24 // (4 * made.network.P))


@pytest.mark.parametrize(
    ("shapes", "alone"),
    [
        ([(3, 8)], False),
        ([(2, 4), (16, 2)], False),
        ([(3, 8), (3, 5)], True),
        ([(1, 8)], True),
        ([(8, 1)], True),
    ],
)
def test_matrices_that_are_no_whole_vectors_or_of_width_1_are_multiplied_alone(
    shapes: list[tuple[int, int]], alone: bool
) -> None:
    assert must_train_alone(shapes) is alone


@pytest.mark.parametrize(("columns", "even"), [([8], 1), ([16, 8], 1), ([4, 8], 2), ([6], 4), ([8, 3], 8)])
def test_inputs_are_whole_vectors_where_minibatches_are_of_even_width(columns: list[int], even: int) -> None:
    assert width_multiple_of(columns) == even


@pytest.mark.parametrize(("side", "hidden", "even"), [(8, [16], 1), (3, [8], 8), (6, [8], 2)])
@pytest.mark.parametrize("mode", ["vmap", "dense"])
def test_what_a_client_s_layers_are_given_is_whole_vectors(
    mode: Any, side: int, hidden: list[int], even: int
) -> None:
    """Numbers of 32 bits, 8 in a vector: a minibatch of odd width and 9 columns would end within one."""
    model = {"model_options": {"hidden": hidden}, "in_shape": (1, side, side)}
    beside = bench(noise(3, (1, 9), side, CLASSES), "mlp", mode, **model)._side_by_side
    assert beside is not None
    assert beside.limits.width_multiple == even
    assert all(beside.limits.width_multiple * columns % 8 == 0 for columns in (side**2, *hidden))


@pytest.mark.parametrize(("hidden", "alone"), [([5], True), ([16], False)])
@pytest.mark.parametrize("mode", ["vmap", "dense"])
def test_who_cannot_begin_at_a_whole_vector_trains_alone(
    data: FederatedData, mode: Mode, hidden: list[int], alone: bool
) -> None:
    beside = bench(data, "mlp", mode, model_options={"hidden": hidden})._side_by_side
    assert beside is not None
    assert (beside.limits.clients == 1) is alone


def test_nor_do_kernels_of_a_convolution_end_within_a_vector(data: FederatedData) -> None:
    model = {"channels": [8, 8], "kernel": 3, "hidden": [8]}
    beside = bench(
        data, "softmax", "vmap", model="cnn", model_options=model, in_shape=(8, 8, 8)
    )._side_by_side
    assert beside is not None
    assert beside.limits.width_multiple * 3 % 8 == 0


def test_which_models_are_dense() -> None:
    assert [(at.weight, at.bias, at.relu) for at in linear_layers(LINEAR)] == [(0, 12, True), (15, 21, False)]
    odd = linear_layers(module(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)))
    assert [(at.weight, at.bias) for at in odd] == [(0, 15), (18, 27), (30, 36)]
    assert linear_layers(module(nn.Linear(4, 2, bias=False)))[0].bias == -1
    others = [CONV, DROPS, module(), module(nn.Linear(4, 2), nn.ReLU()), nn.Linear(4, 2)]
    others += [module(nn.ReLU(), nn.Linear(4, 2)), nn.Sequential(nn.Flatten(2), nn.Linear(4, 2))]
    others += [nn.Sequential(nn.Linear(4, 3), nn.Flatten(0), nn.Linear(3, 2))]
    for other in others:
        assert not linear_layers(other)


class Cool(nn.Sequential):
    """A sequence that does more than its parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / 2


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class More(nn.Linear):
    """A linear layer with a parameter that its own forward does not know."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(before, after)
        self.more = nn.Parameter(torch.ones(1))


def shared() -> nn.Module:
    again = nn.Linear(4, 4)
    return module(again, nn.ReLU(), again, nn.ReLU(), nn.Linear(4, 2))


def tied() -> nn.Module:
    made = module(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    made[3].weight = made[1].weight
    return made


def hooked() -> nn.Module:
    made = module(nn.Linear(4, 2))
    made[1].register_forward_hook(lambda part, given, out: 2 * out)
    return made


DERIVED = {
    "sequence": lambda: Cool(nn.Flatten(), nn.Linear(4, 2)),
    "layer": lambda: module(Doubled(4, 2)),
    "more parameters": lambda: module(More(4, 3), nn.ReLU(), nn.Linear(3, 2)),
    "shared": shared,
    "tied": tied,
    "hooked": hooked,
    "normalised": lambda: module(torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))),
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_model_that_does_more_than_its_layers_is_not_dense(name: str) -> None:
    made = DERIVED[name]()
    assert not linear_layers(made)
    assert resolve_mode("auto", made, method(), "cpu") == "loop"
    assert bool(may_draw(made)) is (name in ("sequence", "layer", "hooked", "normalised"))


@pytest.mark.parametrize("shape", ["softmax", "mlp", "full batch", "momentum", "augmented"])
@pytest.mark.parametrize("same", [True, False], ids=["one start", "two starts"])
def test_groups_filled_up_with_idle_clients_train_alike(data: FederatedData, shape: str, same: bool) -> None:
    """As on a GPU, where all groups have one size: a group larger than the cohort, and one that divides it."""
    jobs = cohort()
    expected, reports = trained(bench(data, shape, "dense", losses=True), jobs, same)
    for most in (K + 7, 16):
        made = bench(data, shape, "dense", losses=True)
        beside = made._side_by_side
        assert isinstance(beside, Dense)
        beside.filled, beside.limits = True, dataclasses.replace(beside.limits, clients=most)
        rows, told = trained(made, jobs, same)
        assert torch.equal(rows, expected)
        assert told.loss_train.tolist() == reports.loss_train.tolist()
        assert told.loss_before.tolist() == reports.loss_before.tolist()


@pytest.mark.parametrize(("given", "wanted"), [(3, 5), (3, 3), (3, 2)])
def test_rows_are_padded_with_zeros_or_cut(given: int, wanted: int) -> None:
    some = torch.arange(1, 2 * given + 1).view(given, 2)
    found = _padded(some, wanted)
    both = min(given, wanted)
    assert found.shape == (wanted, 2)
    assert torch.equal(found[:both], some[:both])
    assert not found[both:].any()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["loop", "vmap", "dense"])
def test_on_a_gpu_the_same_holds(data: FederatedData, mode: str) -> None:
    made, jobs = bench(data, "mlp", mode, device="cuda"), cohort()
    start = made.network.initial(0).cuda()
    rows = torch.empty(K, made.network.P, device="cuda")
    made.train(jobs, [start] * K, rows)
    expected = trained(bench(data, "mlp", "loop"), jobs)[0]
    torch.testing.assert_close(rows.cpu(), expected, rtol=1e-3, atol=1e-4)
    for part in (slice(0, 1), slice(3, 20)):
        some = torch.empty(len(rows[part]), made.network.P, device="cuda")
        made.train(jobs.part(part), [start] * len(some), some)
        assert torch.equal(some, rows[part])


def test_a_job_is_the_same_as_ever(data: FederatedData) -> None:
    """What one job does alone is what the loop does with it."""
    made = bench(data, "mlp", "loop")
    rows, _ = trained(made, cohort(4))
    out = torch.empty(made.network.P)
    made.work(Job(2, 2, 2, 0), made.network.initial(0), out)
    assert torch.equal(out, rows[2])
