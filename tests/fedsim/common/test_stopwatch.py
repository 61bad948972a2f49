"""The stopwatch: exclusive seconds that add up, nested spans, bounded memory, and little overhead."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.common import stopwatch
from fedsim.common.stopwatch import IDLE, SHORT_S, Stopwatch


@dataclass
class ManualClock:
    """A clock that a test moves forward."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    manual = ManualClock()
    monkeypatch.setattr(stopwatch, "perf_counter", manual)
    return manual


def test_an_inner_part_pauses_the_outer_part(time: ManualClock) -> None:
    clock = Stopwatch()
    time.advance(1)
    with clock.part("server"):
        time.advance(2)
        with clock.part("gram"):
            time.advance(4)
        time.advance(8)
        with clock.part("solve"):
            time.advance(16)
    time.advance(32)
    assert clock.report() == {"server": 10, "gram": 4, "solve": 16, "engine": 33, "total": 63}
    assert clock.dump("").parts() == {"gram": 4, "server": 10, "solve": 16}


def test_a_part_within_itself_counts_once(time: ManualClock) -> None:
    clock = Stopwatch(spans=True)
    with clock.part("world"):
        time.advance(1)
        with clock.part("world"):
            time.advance(2)
        time.advance(4)
    assert clock.dump("").parts() == {"world": 7}
    spans = clock.dump("driver").spans
    assert spans is not None
    assert (spans.seconds.tolist(), spans.depth.tolist()) == ([2, 7], [1, 0])


def test_an_error_ends_the_parts_that_it_leaves(time: ManualClock) -> None:
    clock = Stopwatch()

    def fail() -> None:
        time.advance(3)
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"), clock.part("train"), clock.part("transfer"):
        fail()
    time.advance(1)
    assert clock.report() == {"train": 0, "transfer": 3, "engine": 1, "total": 4}


def test_an_open_part_counts_until_now(time: ManualClock) -> None:
    clock = Stopwatch(IDLE)
    with clock.part("train"):
        time.advance(2)
        assert clock.report() == {"train": 2, "idle": 0, "total": 2}
        time.advance(1)
    assert clock.dump("").parts() == {"train": 3}


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave"]), st.floats(0, 10)), max_size=40))
def test_the_parts_always_add_up_to_the_total(moves: list[tuple[str, float]]) -> None:
    time = ManualClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopwatch, "perf_counter", time)
        clock, opened = Stopwatch(), []
        for i, (move, seconds) in enumerate(moves):
            time.advance(seconds)
            if move == "enter":
                opened.append(clock.part(f"part {i % 3}"))
                opened[-1].__enter__()
            elif opened:
                opened.pop().__exit__(None, None, None)
        times, report = clock.dump("driver"), clock.report()
    assert sum(times.seconds.values()) == pytest.approx(times.total_s, abs=1e-9)
    assert times.total_s == pytest.approx(sum(seconds for _, seconds in moves), abs=1e-9)
    total = report.pop("total")
    assert sum(report.values()) == pytest.approx(total, abs=1e-9)


def test_spans_have_start_length_and_depth(time: ManualClock) -> None:
    clock = Stopwatch(spans=True)
    time.advance(1)
    with clock.part("server"):
        time.advance(2)
        with clock.part("gram"):
            time.advance(4)
        with clock.part("solve"):
            time.advance(SHORT_S / 2)
    times = pickle.loads(pickle.dumps(clock.dump("server")))
    spans = times.spans
    names = [spans.parts[i] for i in spans.part]
    assert names == ["gram", "server"]
    assert spans.start_s.tolist() == [3, 1]
    assert spans.depth.tolist() == [1, 0]
    assert spans.seconds.tolist() == pytest.approx([4, 6 + SHORT_S / 2])
    assert times.label == "server"
    assert times.seconds["solve"] == pytest.approx(SHORT_S / 2)
    assert times.seconds["server"] == pytest.approx(2)


def test_spans_are_recorded_only_on_request() -> None:
    clock = Stopwatch()
    assert not clock.recording
    assert clock.dump("driver").spans is None
    assert Stopwatch(spans=True).recording


@pytest.mark.parametrize("lengths", [50, 1])
def test_too_many_spans_leave_the_longest(time: ManualClock, lengths: int) -> None:
    clock = Stopwatch(spans=True, most_spans=100)
    for i in range(1000):
        with clock.part("outer"):
            time.advance(1e-3)
            with clock.part("inner"):
                time.advance(1e-3 * (1 + i % lengths))
    spans = clock.dump("driver").spans
    assert spans is not None
    assert 50 <= len(spans.seconds) <= 100
    assert spans.shortest_s > SHORT_S
    assert spans.seconds.min() >= spans.shortest_s
    inner = [i for i, part in enumerate(spans.part) if spans.parts[part] == "inner"]
    for i in inner:  # the span around a kept span is kept too: it ended at the same instant, right after
        assert spans.parts[spans.part[i + 1]] == "outer"
        assert spans.start_s[i + 1] < spans.start_s[i]
    assert clock.dump("").parts()["outer"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("spans", [False, True])
def test_entering_a_part_takes_little_time(spans: bool) -> None:
    """Measured in pairs of clock readings, which every stopwatch needs."""
    clock = Stopwatch(spans=spans)

    def parts() -> None:
        for _ in range(2000):
            with clock.part("world"):
                pass

    def readings() -> None:
        for _ in range(2000):
            perf_counter()
            perf_counter()

    ratios = []
    for _ in range(9):
        took = []
        for work in (parts, readings):
            started = perf_counter()
            work()
            took.append(perf_counter() - started)
        ratios.append(took[0] / took[1])
    assert min(ratios) < (20 if spans else 9)
