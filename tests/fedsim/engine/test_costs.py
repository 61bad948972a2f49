"""What a job costs and what chance does to it, against the formulas and laws that it promises."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsim.common.errors import ConfigError
from fedsim.common.rng import uniforms
from fedsim.common.units import US
from fedsim.engine.costs import Chance, Completeness, Costs, Jitter, WorkFormula, trace_spread
from fedsim.worlds.trace import Trace
from fedsim.worlds.world import Outcome, Work, World
from timelines import costs_of

FAST = settings(max_examples=60, deadline=None)
MANY = 20_000
EVERYBODY = np.arange(MANY)
FIRST = np.zeros(MANY, dtype=np.int64)

# Uniform numbers


def test_uniforms_are_uniform() -> None:
    u = uniforms(1, "test", EVERYBODY, FIRST)
    assert ((u > 0) & (u < 1)).all()
    assert len(np.unique(u)) == MANY
    assert stats.kstest(u, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    "other",
    [
        (1, "test", EVERYBODY + 1, FIRST),
        (1, "test", EVERYBODY, FIRST + 1),
        (2, "test", EVERYBODY, FIRST),
        (1, "another", EVERYBODY, FIRST),
        (1, "test", FIRST, EVERYBODY),
    ],
)
def test_uniforms_of_other_ids_seeds_and_purposes_are_independent(other: Any) -> None:
    pair = np.stack([uniforms(1, "test", EVERYBODY, FIRST), uniforms(*other)])
    counts, _, _ = np.histogram2d(*pair, bins=8, range=[[0, 1], [0, 1]])
    assert abs(np.corrcoef(pair)[0, 1]) < 4 / math.sqrt(MANY)
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), min_size=1, max_size=8))
@FAST
def test_a_uniform_is_the_same_alone_and_in_company(ids: list[tuple[int, int]]) -> None:
    clients, nths = np.array(ids).T
    together = uniforms(7, "test", clients, nths)
    alone = [uniforms(7, "test", clients[i : i + 1], nths[i : i + 1])[0] for i in range(len(ids))]
    assert together.tolist() == alone


# Jitter


def factors(jitter: Jitter, clients: Any = EVERYBODY, nths: Any = FIRST, seed: int = 0) -> list[Any]:
    return [np.broadcast_to(f, len(clients)) for f in jitter.slowness(seed, clients, nths)]


def test_lognormal_jitter_has_its_law() -> None:
    down, compute, up = factors(Jitter("lognormal", {"downlink": 0.3, "compute": 0.8}))
    for found, spread in ((down, 0.3), (compute, 0.8)):
        assert stats.kstest(np.log(found) / spread, "norm").pvalue > 1e-3
        assert np.median(found) == pytest.approx(1, abs=5 * spread / math.sqrt(MANY))
    assert (up == 1).all(), "a way without a spread does not vary"
    assert abs(np.corrcoef(np.log(down), np.log(compute))[0, 1]) < 4 / math.sqrt(MANY)


@pytest.mark.parametrize("spread", [0.1, 0.5, 2.0])
def test_normal_jitter_is_a_normal_number_above_zero(spread: float) -> None:
    """Of the time of a computation, and of the speed of a transfer: FLASH draws again while negative."""
    _, compute, up = factors(Jitter("normal", {"compute": spread, "uplink": spread}))
    law = stats.truncnorm(-1 / spread, np.inf, loc=1, scale=spread)
    assert stats.kstest(compute, law.cdf).pvalue > 1e-3
    assert stats.kstest(1 / up, law.cdf).pvalue > 1e-3
    assert (compute > 0).all()
    assert np.isfinite(up).all()


def test_a_jitter_of_nothing_changes_nothing() -> None:
    for law in ("lognormal", "normal"):
        assert all((f == 1).all() for f in factors(Jitter(law, {"compute": 0.0, "uplink": np.zeros(MANY)})))


def test_each_client_may_have_a_spread_of_its_own() -> None:
    spread = np.where(EVERYBODY % 2 == 0, 0.0, 0.5)
    own, same = (factors(Jitter("lognormal", {"compute": s}))[1] for s in (spread, 0.5))
    assert (own[::2] == 1).all()
    assert (own[1::2] == same[1::2]).all()


@given(st.permutations(range(6)), st.integers(0, 3))
@FAST
def test_jitter_depends_on_seed_client_and_job_alone(order: list[int], seed: int) -> None:
    clients, nths = np.array([3, 1, 4, 1, 5, 9]), np.array([0, 1, 2, 3, 4, 5])
    jitter = Jitter("normal", {"compute": np.linspace(0, 1, 10)})
    usual, mixed = (
        factors(jitter, clients, nths, seed)[1],
        factors(jitter, clients[order], nths[order], seed)[1],
    )
    assert (usual[order] == mixed).all()
    assert not np.array_equal(usual, factors(jitter, clients, nths, seed + 1)[1])
    assert not np.array_equal(usual, factors(jitter, clients, nths + 1, seed)[1])


def test_spreads_that_a_trace_does_not_know_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cost.jitter.uplink.*'uplink_cv'.*did you mean 'downlink_cv'"):
        trace_spread({"downlink_cv": np.ones(2)}, "uplink")
    known = trace_spread({"compute_cv": np.array([0.2, np.nan, -1.0])}, "compute")
    assert known.tolist() == [0.2, 0.0, 0.0], "a client of which nothing is told does not vary"


# How much is done


def shares(how: Completeness, steps: int = 12, epochs: int = 3, nths: Any = FIRST) -> Any:
    return how.shares(0, EVERYBODY, nths, np.full(MANY, steps), epochs)


def assert_uniform_over(found: Any, values: list[float]) -> None:
    kinds, counts = np.unique(np.round(found, 9), return_counts=True)
    assert kinds.tolist() == np.round(values, 9).tolist()
    assert stats.chisquare(counts).pvalue > 1e-3


def test_everything_is_done_unless_said() -> None:
    assert (shares(Completeness()) == 1).all()
    assert Completeness() == Completeness("all", chance=1.0, low=1, high=1, fixed=False)
    assert (Chance(), Jitter()) == (Chance(0.0, "same", "any"), Jitter("lognormal", {}))
    assert (costs_of(1).completeness, costs_of(1).chance) == (Completeness(), Chance())
    assert costs_of(1).plain is True
    ways: dict[str, Any] = {
        "jitter": Jitter(spread={"compute": 0.1}),
        "chance": Chance(0.1),
        "completeness": Completeness("FSU"),
    }
    assert not any(costs_of(1, **{name: how}).plain for name, how in ways.items())


def test_fedprox_s_stragglers_do_a_uniform_number_of_epochs() -> None:
    """A share of 90 % does uniformly 1 to E epochs (Li et al. 2020)."""
    found = shares(Completeness("epochs", chance=0.9, low=1, high=4), epochs=4)
    counts = [np.sum(np.isclose(found, k / 4)) for k in (1, 2, 3, 4)]
    expected = np.array([0.9 / 4, 0.9 / 4, 0.9 / 4, 0.9 / 4 + 0.1]) * MANY
    assert sum(counts) == MANY
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_fednova_s_clients_do_two_to_five_epochs_each_time_or_once() -> None:
    once, each = (Completeness("epochs", low=2, high=5, fixed=fixed) for fixed in (True, False))
    assert_uniform_over(shares(each, epochs=5), [0.4, 0.6, 0.8, 1.0])
    assert (shares(once, epochs=5) == shares(once, epochs=5, nths=FIRST + 8)).all()
    assert (shares(each, epochs=5) != shares(each, epochs=5, nths=FIRST + 8)).any()
    assert shares(each, epochs=2).max() == 2.5, "more epochs than configured are a share above 1"


def test_fsu_draws_once_the_whole_part_of_steps_by_a_uniform_number() -> None:
    found = shares(Completeness("FSU"), steps=4)
    assert (found == shares(Completeness("FSU"), steps=4, nths=FIRST + 5)).all()
    counts = [np.sum(found == k / 4) for k in (1, 2, 3)]  # 0 steps become 1
    assert stats.chisquare(counts, np.array([0.5, 0.25, 0.25]) * MANY).pvalue > 1e-3


@pytest.mark.parametrize(("low", "first"), [(0, 0), (1, 1), (7, 1)])
def test_adu_and_asu_draw_epochs_from_at_most_one_up_to_but_without_the_end(low: int, first: int) -> None:
    """The lower end can never exceed 1; an epoch is the least that is done."""
    each = Completeness("ADU", low=low, high=4)
    found = shares(each, epochs=3)
    counts = [np.sum(np.isclose(found, k / 3)) for k in (1, 2, 3)]
    expected = [2 / 4, 1 / 4, 1 / 4] if first == 0 else [1 / 3] * 3
    assert stats.chisquare(counts, np.array(expected) * MANY).pvalue > 1e-3
    assert (found != shares(each, nths=FIRST + 1)).any()
    assert np.allclose(shares(replace(each, high=2)), 1 / 3), "only one epoch is left to draw"
    once = replace(each, mode="ASU")
    assert (shares(once) == shares(once, nths=FIRST + 1)).all()


def test_pdu_only_shrinks_and_starts_from_what_was_left() -> None:
    how = Completeness("PDU", chance=0.5)
    steps = [np.round(shares(how, nths=FIRST + nth) * 12).astype(int) for nth in range(6)]
    before = np.full(MANY, 12)
    for now in steps:
        assert (now <= before).all()
        assert (now >= 1).all()
        kept = now == before
        assert abs(kept[before > 1].mean() - 0.5) < 4 * 0.5 / math.sqrt((before > 1).sum()), "half draw anew"
        before = now
    drawn = steps[0][steps[0] < 12]
    counts = np.bincount(drawn, minlength=12)[1:]
    assert stats.chisquare(counts, np.array([2 / 12, *[1 / 12] * 10]) * counts.sum()).pvalue > 1e-3


def test_what_is_left_of_a_job_does_not_depend_on_the_jobs_of_others() -> None:
    how, nths = Completeness("PDU", chance=0.5), EVERYBODY % 4
    together = shares(how, nths=nths)
    for nth in range(4):
        assert (together[nth::4] == shares(how, nths=FIRST + nth)[nth::4]).all()


def test_a_pdu_of_certainty_ends_at_one_step() -> None:
    assert (shares(Completeness("PDU", chance=1.0), nths=FIRST + 40) == 1 / 12).all()
    late = FIRST + 10**9
    assert (shares(Completeness("PDU", chance=0.5), nths=late) == 1 / 12).all(), (
        "what cannot shrink is not drawn"
    )
    assert (shares(Completeness("PDU", chance=0.0), nths=late) == 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chance": 1.5}, "chance: expected a share from 0 to 1, found 1.5"),
        ({"mode": "epochs", "low": 3, "high": 2}, "1 <= low <= high, found low = 3 and high = 2"),
        ({"mode": "epochs", "low": 0, "high": 2}, "1 <= low <= high"),
        ({"mode": "ADU"}, "high of at least 2, found 1 .FLGo's own default"),
        ({"mode": "ASU", "low": 0, "high": 0}, "high of at least 1, found 0"),
    ],
)
def test_a_completeness_that_cannot_be_drawn_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Completeness(**options)


# Loss by chance


def test_the_same_chance_holds_for_each_job() -> None:
    chance = Chance(0.2)
    first, second = (chance.lost_at(0, EVERYBODY, FIRST + nth) for nth in (0, 1))
    lost = np.stack([first < 1, second < 1])
    assert lost.mean() == pytest.approx(0.2, abs=0.01)
    assert (lost[0] & lost[1]).mean() == pytest.approx(0.04, abs=0.006), "independently from job to job"
    assert stats.kstest(first[lost[0]], "uniform").pvalue > 1e-3
    assert np.isinf(first[~lost[0]]).all()


def test_a_uniform_chance_is_a_client_s_own() -> None:
    """UNI of FLGo: with chance gamma a client has a probability uniform on [0, 1], else 0."""
    clients, jobs = np.repeat(np.arange(1000), 200), np.tile(np.arange(200), 1000)
    rate = (Chance(0.4, "uniform").lost_at(0, clients, jobs) < 1).reshape(1000, 200).mean(axis=1)
    prone = rate > 0
    assert prone.mean() == pytest.approx(0.4, abs=0.06)
    assert stats.kstest(rate[prone], "uniform").pvalue > 1e-3


# Work


def test_costs_are_those_of_the_chosen_clients() -> None:
    work = Work(np.array([1, 2, 3]), np.array([10.0, 20.0, 30.0]), np.array([4, 5, 6]), (2.0, 1.0, 3.0))
    costs = Costs(work, np.array([1, 2, 3]), epochs=1, seed=0, jitter=Jitter("lognormal", {"compute": 0.5}))
    clients, nths = np.array([2, 0]), np.array([5, 0])
    found = costs.of(clients, nths, np.array([0.5, 1.0]))
    assert found.download_bytes.tolist() == [3, 1]
    assert found.samples.tolist() == [15.0, 10.0]
    assert found.upload_bytes.tolist() == [6, 4]
    factor = costs.jitter.slowness(0, clients, nths)[1]
    for slow, expected in zip(found.slowness, (2.0, factor, 3.0), strict=True):
        assert np.array_equal(np.broadcast_to(slow, 2), np.broadcast_to(expected, 2))
    assert np.isinf(found.lost_at)
    assert costs.shares(clients, nths).tolist() == [1, 1]


@pytest.mark.parametrize(("within", "index"), [("any", 0), ("download", 1), ("compute", 2), ("upload", 3)])
def test_chance_loses_jobs_in_the_phase_that_is_named(within: Any, index: int) -> None:
    costs = costs_of(1, chance=Chance(1.0, within=within))
    work = costs.of(np.array([0]), np.array([0]), np.ones(1))
    assert work.lost_in == index
    outcome = one(World(trace(compute=1.0, downlink=100.0, uplink=100.0)), work)
    assert not outcome.ok
    assert index == 0 or outcome.phase == within


def trace(**speeds: float) -> Trace:
    """One client that is always online."""
    kinds, values = ["online", *speeds], [1.0, *speeds.values()]
    n, horizon = len(kinds), 10**6 * US
    return Trace.of(
        [0] * n, [0] * n, [horizon] * n, kinds, values, clients=1, horizon_us=horizon, after_end="stop"
    )


def one(world: World, work: Work) -> Outcome:
    return world.outcome(0, 0, work)


def usual(formula: Any, n: int = 95, epochs: int = 2, batch_size: int | None = 10, **changes: Any) -> Work:
    options: dict[str, Any] = {"payload_bytes": 3_000_000, "passes": float(epochs)}
    options |= {name: changes.pop(name) for name in options if name in changes}
    rule = WorkFormula(formula, **changes)
    return rule.work(np.array([n]), epochs=epochs, batch_size=batch_size, **options)


def test_the_plain_formula_is_samples_epochs_and_bytes() -> None:
    world = World(trace(compute=0.02, downlink=4e6, uplink=1e6))
    done = one(world, usual("fedsim", scale=1.5))
    assert done.download_us == 0.75 * US
    assert done.compute_us - done.download_us == pytest.approx(95 * 2 * 0.02 * 1.5 * US, abs=1)
    assert done.end_us - done.compute_us == 3 * US


def test_fedscale_s_formula() -> None:
    """3.0 x B x steps x `computation` / 1000 and (upload + download) kbit, pickled bytes x 8 / 1024, / `communication`.

    A capacity of 60 ms a sample and 5,000 kbit/s is 0.18 s of training a sample and 625,000 bytes/s, both ways.
    """
    computation_ms, communication_kbit_per_s, nbytes, batch, steps = 60.0, 5000.0, 3_000_000, 30, 20
    compute_s = 3.0 * batch * steps * computation_ms / 1000
    transfer_s = 2 * (nbytes * 8 / 1024) / communication_kbit_per_s
    assert (compute_s, transfer_s) == (108.0, 9.375)
    world = World(trace(compute=60 / 1000 * 3, downlink=5000 * 1000 / 8, uplink=5000 * 1000 / 8))
    done = one(world, usual("fedscale", n=7, epochs=1, batch_size=30))
    assert done.compute_us - done.download_us == pytest.approx(108.0 * US, abs=1), (
        "whatever the client's data"
    )
    assert done.end_us == pytest.approx((108.0 + 9.375) * US, abs=3)
    assert (done.downloaded_bytes, done.uploaded_bytes) == (nbytes, nbytes)


def test_flash_s_formula() -> None:
    """E x ceil(n / B) x mean ms / 1000; download (bytes / 1024) / speed, upload bytes / speed / 1000, speeds in kB/s.

    The slow class of FEMNIST takes 1642 ms a batch, of 10 samples; the phone has 800 kB/s down and 250 kB/s up.
    """
    world = World(trace(compute=1642 / 1000 / 10, downlink=800 * 1000.0, uplink=250 * 1000.0))
    done = one(world, usual("flash", n=95, epochs=2, batch_size=10))
    assert done.download_us == pytest.approx(3.662109375 * US, abs=1)
    assert done.compute_us - done.download_us == pytest.approx(2 * 10 * 1.642 * US, abs=1)
    assert done.end_us - done.compute_us == pytest.approx(12.0 * US, abs=1)


@pytest.mark.parametrize(("n", "batches"), [(1, 1), (9, 1), (10, 1), (11, 2), (95, 4)])
def test_flash_counts_whole_batches_of_at_most_so_many_samples(n: int, batches: int) -> None:
    assert usual("flash", n=n, epochs=3, flash_most_samples=40).samples.tolist() == [3 * batches * 10]


@given(st.integers(1, 500), st.integers(1, 5), st.integers(1, 64), st.floats(0.1, 10))
@FAST
def test_formulas_grow_with_passes_and_scale(n: int, epochs: int, batch: int, scale: float) -> None:
    """A method that goes twice over the data costs twice as much computation, in each formula."""
    for formula in ("fedsim", "fedscale", "flash"):
        plain = usual(formula, n, epochs, batch)
        double = usual(formula, n, epochs, batch, passes=2.0 * epochs, scale=scale)
        assert double.samples == pytest.approx(plain.samples * 2 * scale)
        assert double.upload_bytes == plain.upload_bytes
        whole = usual(formula, n, epochs, None)
        assert whole.samples == pytest.approx(n * (20 if formula == "fedscale" else epochs)), (
            "one batch of all"
        )
