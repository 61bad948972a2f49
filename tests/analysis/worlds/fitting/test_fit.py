"""Fitting: what was put into a world is found again, and what does not agree is said."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import inputs
from fedsim.analysis.worlds.fitting.comparison import compare_fit
from fedsim.analysis.worlds.fitting.fit import WorldFit, fit_world
from fedsim.analysis.worlds.fitting.spell_laws import Lengths, fit_law
from fedsim.analysis.worlds.fitting.spells import spells_of
from fedsim.cli.trace.app import trace_app
from fedsim.common.errors import ConfigError, TraceError
from fedsim.common.units import US, duration_us
from fedsim.scenarios.processes.hazards import Hazard
from fedsim.worlds.importer import import_trace
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import Trace, read_trace

HOUR, DAY = 3600 * US, 86400 * US


def made(name: str, options: Mapping[str, Any], clients: int = 60, days: float = 3, seed: int = 1) -> Trace:
    return make_trace(name, options, clients=clients, horizon_us=round(days * DAY), seed=seed)


def fitted_to(trace: Trace) -> WorldFit:
    return fit_world(trace, lambda options: again(trace, options))


def again(trace: Trace, options: Mapping[str, Any], seed: int = 7) -> Trace:
    return make_trace("fitted", options, clients=trace.clients, horizon_us=trace.horizon_us, seed=seed)


def online(rows: list[tuple[int, int, int]], clients: int, horizon_us: int, **more: Any) -> Trace:
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 3
    return Trace.of(*columns, "online", clients=clients, horizon_us=horizon_us, **more)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(trace_app, [str(a) for a in arguments])


# What is seen


def test_spells_know_what_was_seen_of_them() -> None:
    rows = [(0, 10, 20), (0, 40, 50), (0, 60, 70), (1, 0, 100)]
    kinds = ["online", "online", "unknown", "online"]
    columns = list(zip(*rows, strict=True))
    periods = {"online": np.array([0, 0, 30])}
    trace = Trace.of(*columns, kinds, clients=3, horizon_us=100, periods=periods)
    found = spells_of(trace)
    assert list(zip(found.client, found.start_us, found.end_us, found.online, strict=True)) == [
        (0, 0, 10, False),
        (0, 10, 20, True),
        (0, 20, 40, False),
        (0, 40, 50, True),
        (0, 50, 60, False),
        (0, 70, 100, False),
        (1, 0, 100, True),
        (2, 0, 30, False),
    ]
    assert found.began.tolist() == [False, True, True, True, True, False, False, False]
    assert found.ended.tolist() == [True, True, True, True, False, False, False, False]
    assert found.online_share() == pytest.approx([20 / 90, 1, 0])
    assert found.step_us == 10


@st.composite
def looks(draw: st.DrawFn) -> np.ndarray:
    clients, times = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    line = st.lists(st.sampled_from([0, 1, 2]), min_size=times, max_size=times)
    return np.array([draw(line) for _ in range(clients)])


@given(looks())
@settings(max_examples=80, deadline=None)
def test_spells_add_up_to_the_time_that_is_seen(table):
    cells = [(int(c), int(t), int(t) + 1, table[c, t]) for c, t in np.argwhere(table > 0)]
    columns = [[cell[i] for cell in cells] for i in range(3)]
    kinds = ["online" if cell[3] == 1 else "unknown" for cell in cells]
    trace = Trace.of(*columns, kinds, clients=len(table), horizon_us=table.shape[1])
    found = spells_of(trace)
    assert found.seen_us(True).tolist() == (table == 1).sum(axis=1).tolist()
    assert found.seen_us(False).tolist() == (table == 0).sum(axis=1).tolist()
    follows = (found.client[1:] == found.client[:-1]) & (found.start_us[1:] == found.end_us[:-1])
    assert (found.online[1:] != found.online[:-1])[follows].all()
    assert (found.ended[:-1] == follows).all()
    assert (found.began[1:] == follows).all()


def test_a_world_is_seen_with_the_gaps_and_the_step_of_a_trace() -> None:
    sampled = online([(0, 20, 40), (1, 0, 10)], 2, 100, periods={"online": np.array([0, 50])})
    world = online([(0, 3, 9), (0, 15, 42), (1, 5, 90)], 2, 100)
    found = spells_of(world, seen_as=sampled)
    on = found.of(found.online)
    assert list(zip(on.client, on.start_us, on.end_us, strict=True)) == [(0, 20, 50), (1, 10, 50)]


# Laws


@pytest.mark.parametrize(
    ("name", "shape", "spread"),
    [("exponential", 1.0, 0.0), ("weibull", 0.6, 0.5), ("gamma", 2.5, 0.7), ("lognormal", 1.2, 0.4)],
)
def test_a_law_is_found_again_though_many_lengths_are_cut_off(name: str, shape: float, spread: float) -> None:
    rng, clients = np.random.default_rng(5), 150
    client = np.repeat(np.arange(clients), 12)
    factor = np.exp(spread * rng.standard_normal(clients))
    hours = Hazard(name, 3.0, shape).inverse(rng.exponential(size=len(client))) * factor[client]
    limit = rng.uniform(1, 20, len(client))
    found = fit_law(Lengths(np.minimum(hours, limit), client, hours < limit, np.zeros(len(hours))))
    # A Weibull or a gamma law of shape 1 is exponential, and by chance a shape near 1 may seem worth a parameter.
    assert found.law.name == name or (name == "exponential" and found.law.name in ("weibull", "gamma"))
    assert found.law.mean_h == pytest.approx(3.0, rel=0.25)
    assert found.law.shape == pytest.approx(shape, rel=0.12)
    assert found.spread == pytest.approx(spread, abs=0.12)


def test_a_sampled_length_is_not_taken_for_an_exact_one() -> None:
    rng = np.random.default_rng(2)
    exact = Hazard("weibull", 1.0, 0.8).inverse(rng.exponential(size=1500))
    step = 0.25
    seen = np.round(exact / step) * step
    kept = seen > 0
    client, ended = np.zeros(kept.sum(), dtype=np.int64), np.ones(kept.sum(), dtype=bool)
    found = fit_law(Lengths(seen[kept], client, ended, np.full(kept.sum(), step)))
    assert found.law.mean_h == pytest.approx(exact[kept].mean(), rel=0.08)
    assert found.law.shape < 1.3


# Round trips


def test_churn_is_found_again() -> None:
    trace = made("churn", {"mean_on": "2h", "mean_off": "4h"}, clients=120)
    found = fitted_to(trace)
    options = found.options()
    assert found.on is not None
    assert found.off is not None
    for side, mean_h in ((found.on, 2.0), (found.off, 4.0)):
        assert side.fit.law.mean_h == pytest.approx(mean_h, rel=4 / math.sqrt(side.n_ended))
        assert side.fit.law.shape == pytest.approx(1, abs=0.1)
        assert side.fit.spread < 0.15
    assert (options["leaving"], options["coming"]) == ([], [])
    assert (options["always"], options["never"]) == (0, 0)
    assert options["devices"]["uplink_bytes_per_s"] == pytest.approx(1e6, rel=0.3)
    assert duration_us(options["devices"]["fault_every"]) == pytest.approx(2 * DAY, rel=0.3)
    assert {str(s.verdict) for s in compare_fit(trace, again(trace, options)).statistics} <= {
        "close",
        "within chance",
        "fair",
    }


def test_a_semi_markov_world_is_found_again_with_its_hours_habits_and_absentees() -> None:
    come = [0.2] * 8 + [1.5] * 12 + [1.0] * 4
    true: dict[str, Any] = {
        "on": {"law": "weibull", "mean": "1h", "shape": 0.7, "spread": 0.5},
        "off": {"law": "lognormal", "mean": "3h", "shape": 1.0, "spread": 0.4},
        "spread_correlation": -0.6,
        "coming": come,
        "always": 0.1,
        "never": 0.2,
    }
    trace = made("fitted", true, clients=200, days=7)
    options = fitted_to(trace).options()
    for side in ("on", "off"):
        found = options[side]
        assert found["law"] == true[side]["law"]
        assert duration_us(found["mean"]) == pytest.approx(duration_us(true[side]["mean"]), rel=0.2)
        assert found["shape"] == pytest.approx(true[side]["shape"], rel=0.1)
        assert found["spread"] == pytest.approx(true[side]["spread"], abs=0.15)
    assert options["leaving"] == []
    assert np.array(options["coming"]) * np.mean(come) == pytest.approx(come, rel=0.35, abs=0.12)
    assert options["spread_correlation"] == pytest.approx(-0.6, abs=0.3)
    assert options["always"] == pytest.approx(0.1, abs=0.07)
    assert options["never"] == pytest.approx(0.2, abs=0.09)


def test_a_diurnal_world_keeps_its_wave() -> None:
    trace = made("diurnal", {"night_share": 0.7}, clients=120, days=4)
    comparison = compare_fit(trace, again(trace, fitted_to(trace).options()))
    seen, simulated = comparison.trace.day, comparison.simulated.day
    assert np.ptp(seen) > 0.3
    assert np.corrcoef(seen, simulated)[0, 1] > 0.95
    assert np.abs(seen - simulated).max() < 0.12


def test_a_fit_is_the_same_every_time() -> None:
    trace = made("churn", {}, clients=15, days=2)
    assert fitted_to(trace).options() == fitted_to(trace).options()


def test_unknown_stretches_and_periods_do_not_shorten_lengths() -> None:
    full = made("churn", {"mean_on": "3h", "mean_off": "3h"}, clients=150, days=3).spans("online")
    hidden = [(c, s, e) for c in range(150) for s, e in ((5 * HOUR, 8 * HOUR), (20 * HOUR, 23 * HOUR))]
    rows = [(int(c), int(s), int(e)) for c, s, e in zip(full.client, full.start_us, full.end_us, strict=True)]
    shown = []
    for c, s, e in rows:
        cuts = [0, 5 * HOUR, 8 * HOUR, 20 * HOUR, 23 * HOUR, 2 * DAY]
        shown += [(c, max(s, a), min(e, b)) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
    shown = [(c, s, e) for c, s, e in shown if s < e]
    columns = list(zip(*[*shown, *hidden], strict=True))
    kinds = ["online"] * len(shown) + ["unknown"] * len(hidden)
    periods = {"online": np.full(150, 2 * DAY)}
    trace = Trace.of(*columns, kinds, clients=150, horizon_us=3 * DAY, periods=periods)
    found = fitted_to(trace)
    assert found.on is not None
    assert found.on.fit.law.mean_h == pytest.approx(3.0, rel=0.15)


# Edges


def test_everybody_always_or_never_there() -> None:
    found = fitted_to(online([(0, 0, DAY), (1, 0, DAY)], 4, DAY))
    assert found.options() == {
        "always": 0.5,
        "never": 0.5,
        "devices": {"modelled": [], "fault_every": "never"},
    }
    assert "nobody comes or goes" in found.notes[0]


@pytest.mark.parametrize("clients", [12, 13, 17, 33])
def test_rounded_shares_of_all_clients_are_a_world(clients: int) -> None:
    """32 of 33 and 1 of 33, each rounded up, are more than all."""
    found = fitted_to(online([(client, 0, DAY) for client in range(clients - 1)], clients, DAY)).options()
    assert found["always"] + found["never"] <= 1
    assert make_trace("fitted", found, clients=3, horizon_us=DAY, seed=1).clients == 3


def test_too_few_spells_are_said_to_be_too_few() -> None:
    few = online([(0, 10, 20), (0, 30, 40), (0, 60, 70)], 1, 100)
    with pytest.raises(
        TraceError, match="at least 10 spells online that are seen to begin and to end, found 3"
    ):
        fitted_to(few)
    dark = Trace.of([0], [0], [100], "unknown", clients=1, horizon_us=100)
    with pytest.raises(TraceError, match="nothing is known"):
        fitted_to(dark)
    unseen = Trace.of(
        [0, 0, 1], [0, 10, 0], [10, 20, 30], ["online", "unknown", "online"], clients=3, horizon_us=30
    )
    with pytest.raises(TraceError, match=r"^1 clients are online at times .* no length is seen"):
        fitted_to(unseen)


def test_so_many_clients_are_used_that_enough_lengths_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.analysis.worlds.fitting.fit.MOST_SPELLS", 20)
    rows = [(c, 100 + c, 200 + 2 * c) for c in range(40)] + [(c, 300 + 5 * c, 900) for c in range(1, 40, 2)]
    side = fitted_to(online(rows, 40, 1000)).off
    assert side
    assert side.n_ended == 20


def test_constant_lengths_of_one_client() -> None:
    rows = [(0, 5 * i * HOUR, (5 * i + 2) * HOUR) for i in range(1, 30)]
    trace = online(rows, 1, 150 * HOUR)
    options = fitted_to(trace).options()
    assert options["on"] == {"law": "constant", "mean": "2h", "spread": 0.0}
    assert options["off"] == {"law": "constant", "mean": "3h", "spread": 0.0}
    comparison = compare_fit(trace, again(trace, options))
    assert comparison.statistics[0].distance == 0
    assert str(comparison.statistics[2]) == "online shares: not measured (1 client)"


def test_a_trace_shorter_than_a_day_has_no_hours() -> None:
    trace = made("churn", {"mean_on": "10min", "mean_off": "10min"}, clients=10, days=0.4)
    found = fitted_to(trace)
    assert found.options()["coming"] == []
    assert "shorter than a day" in found.notes[0]
    lines = [str(s) for s in compare_fit(trace, again(trace, found.options())).statistics]
    assert "hours of the day: not measured (10 clients)" in lines
    assert any(line.startswith("autocorrelation at 12 h: not measured") for line in lines)


def test_different_worlds_are_told_to_be_far_apart() -> None:
    trace = made("churn", {"mean_on": "1h", "mean_off": "1h"}, clients=40, days=2)
    other = made("churn", {"mean_on": "3h", "mean_off": "9h"}, clients=40, days=2)
    verdicts = {s.name: s.verdict for s in compare_fit(trace, other).statistics}
    assert [verdicts[name] for name in ("on lengths", "off lengths", "online shares")] == ["far"] * 3
    same = compare_fit(trace, trace).statistics
    assert {s.distance for s in same if not math.isnan(s.distance)} == {0.0}


# A recorded trace


def test_spot_machines_are_fitted_by_their_samples_and_told_where_they_differ() -> None:
    spot = inputs.trace("spot-skypilot/availability/1-node/aws-10-26-2022")
    trace = import_trace(sorted(spot.iterdir())[:3], "skypilot")
    found = fitted_to(trace)
    assert "all changes are at multiples of 600 s: shorter spells may have been missed" in found.notes
    assert found.on is not None
    assert 0.2 < found.on.fit.law.mean_h < 48
    statistics = {s.name: s for s in compare_fit(trace, again(trace, found.options())).statistics}
    assert statistics["on lengths"].distance < 0.3
    assert statistics["hours of the day, mean"].distance < 0.15
    # Spot markets have weeks of plenty and of want, which a model without a memory does not.
    assert statistics["autocorrelation at 24 h"].verdict != "not measured"


# The command


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("fit") / "seen.parquet"
    made("diurnal", {}, clients=25, days=2).write(file)
    return file


def test_fit_writes_a_scenario_that_makes_a_world_of_any_size(trace_file: Path, tmp_path: Path) -> None:
    out, png, big = tmp_path / "like.toml", tmp_path / "fit.png", tmp_path / "big.parquet"
    result = run("fit", trace_file, "-o", out, "--png", png)
    assert result.exit_code == 0, result.output
    text = out.read_text()
    world = tomllib.loads(text)["world"]
    assert (world["scenario"], world["clients"], world["horizon"]) == ("fitted", 25, "2d")
    assert "# fitted to seen.parquet: 25 clients, 2d" in text
    for statistic in ("on lengths: KS", "hours of the day", "autocorrelation at 24 h"):
        assert statistic in text
        assert statistic in result.output
    assert png.read_bytes().startswith(b"\x89PNG")
    assert run("make", out, "--set", "world.clients=300", "-o", big).exit_code == 0
    share = spells_of(read_trace(big)).online_share().mean()
    assert share == pytest.approx(spells_of(read_trace(trace_file)).online_share().mean(), abs=0.12)
    assert run("fit", trace_file, "-o", out, "--force").exit_code == 0
    assert out.read_text() == text


def test_fit_refuses_to_overwrite_and_pictures_it_cannot_draw(trace_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "like.toml"
    out.write_text("mine")
    result = run("fit", trace_file, "-o", out)
    assert isinstance(result.exception, ConfigError)
    assert "use --force" in str(result.exception)
    assert out.read_text() == "mine"
    over = run("fit", trace_file, "-o", trace_file, "--force").exception
    assert "is one of the files to read" in str(over)
    assert "expected a name that ends in" in str(
        run("fit", trace_file, "-o", tmp_path / "x.toml", "--png", "x.txt").exception
    )
