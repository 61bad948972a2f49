"""A few dozen of the fuzzer's runs; `benchmarks/fuzz.py` plays thousands."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import fuzz_play
from fedsim import Result
from fedsim.config.run import RunConfig
from fuzz_cases import case
from fuzz_play import TREATMENTS, play

SEEDS = range(40)


@pytest.mark.parametrize("first", SEEDS[::8])
def test_nothing_is_found(first: int) -> None:
    names = list(TREATMENTS)
    for seed in range(first, first + 8):
        played = play(seed, [names[seed // 4 % len(names)]] if seed % 4 == 0 else [])
        assert not played.findings, f"python benchmarks/fuzz.py --seed {seed} --runs 1 -v\n{played.findings}"


def test_a_seed_stands_for_one_configuration(tmp_path: Path) -> None:
    assert case(7, tmp_path) == case(7, tmp_path)
    assert case(7, tmp_path) != case(8, tmp_path)


def test_most_of_what_can_happen_happens() -> None:
    seen = set[str]()
    outcomes = set[str]()
    for seed in SEEDS:
        played = play(seed)
        seen |= set(played.seen)
        outcomes.add(played.outcome)
    assert {f"job: {s}" for s in ("aggregated", "late", "lost", "unfinished", "nonfinite")} <= seen
    assert {"done", "refused"} <= outcomes
    assert len([name for name in seen if name.startswith("invariant: ")]) > 35


def test_another_digest_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(config: RunConfig, plain: Result, out: Path, draw: random.Random) -> str:
        return "another"

    monkeypatch.setitem(TREATMENTS, "other", other)
    done = next(seed for seed in SEEDS if play(seed).outcome == "done")
    assert (
        play(done, ["other"]).findings[0].startswith("other: digest another, expected that of the plain run")
    )


@pytest.mark.parametrize("raised", [ZeroDivisionError("nought"), TimeoutError("too long")])
def test_what_raises_is_a_finding(raised: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any, **more: Any) -> None:
        raise raised

    done = next(seed for seed in SEEDS if play(seed).outcome == "done")
    monkeypatch.setattr(fuzz_play, "simulate", fails)
    played = play(done)
    assert played.outcome == "finding"
    assert str(raised) in played.findings[0]
    assert "test_simulations.py, line" in played.findings[0]
