"""The stopwatch: exclusive seconds that add up, spans that nest, bounded memory, and next to no cost."""

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
class Hands:
    """A clock that goes on when it is told to."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr(stopwatch, "perf_counter", made)
    return made


def test_a_part_within_another_halts_it(hands: Hands) -> None:
    clock = Stopwatch()
    hands.go(1)
    with clock.part("server"):
        hands.go(2)
        with clock.part("gram"):
            hands.go(4)
        hands.go(8)
        with clock.part("solve"):
            hands.go(16)
    hands.go(32)
    assert clock.report() == {"server": 10, "gram": 4, "solve": 16, "engine": 33, "total": 63}
    assert clock.dump("").parts() == {"gram": 4, "server": 10, "solve": 16}


def test_a_part_within_itself_counts_once(hands: Hands) -> None:
    clock = Stopwatch(spans=True)
    with clock.part("world"):
        hands.go(1)
        with clock.part("world"):
            hands.go(2)
        hands.go(4)
    assert clock.dump("").parts() == {"world": 7}
    spans = clock.dump("driver").spans
    assert spans is not None
    assert (spans.seconds.tolist(), spans.depth.tolist()) == ([2, 7], [1, 0])


def test_an_error_ends_the_parts_it_goes_through(hands: Hands) -> None:
    clock = Stopwatch()

    def fail() -> None:
        hands.go(3)
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"), clock.part("train"), clock.part("transfer"):
        fail()
    hands.go(1)
    assert clock.report() == {"train": 0, "transfer": 3, "engine": 1, "total": 4}


def test_an_open_part_counts_until_now(hands: Hands) -> None:
    clock = Stopwatch(IDLE)
    with clock.part("train"):
        hands.go(2)
        assert clock.report() == {"train": 2, "idle": 0, "total": 2}
        hands.go(1)
    assert clock.dump("").parts() == {"train": 3}


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave"]), st.floats(0, 10)), max_size=40))
def test_the_parts_always_add_up_to_the_total(moves: list[tuple[str, float]]) -> None:
    hands = Hands()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopwatch, "perf_counter", hands)
        clock, opened = Stopwatch(), []
        for i, (move, seconds) in enumerate(moves):
            hands.go(seconds)
            if move == "enter":
                opened.append(clock.part(f"part {i % 3}"))
                opened[-1].__enter__()
            elif opened:
                opened.pop().__exit__(None, None, None)
        found, report = clock.dump("driver"), clock.report()
    assert sum(found.seconds.values()) == pytest.approx(found.total_s, abs=1e-9)
    assert found.total_s == pytest.approx(sum(seconds for _, seconds in moves), abs=1e-9)
    total = report.pop("total")
    assert sum(report.values()) == pytest.approx(total, abs=1e-9)


def test_spans_say_when_and_how_deep(hands: Hands) -> None:
    clock = Stopwatch(spans=True)
    hands.go(1)
    with clock.part("server"):
        hands.go(2)
        with clock.part("gram"):
            hands.go(4)
        with clock.part("solve"):
            hands.go(SHORT_S / 2)
    found = pickle.loads(pickle.dumps(clock.dump("server")))
    spans = found.spans
    names = [spans.parts[i] for i in spans.part]
    assert names == ["gram", "server"]
    assert spans.start_s.tolist() == [3, 1]
    assert spans.depth.tolist() == [1, 0]
    assert spans.seconds.tolist() == pytest.approx([4, 6 + SHORT_S / 2])
    assert found.label == "server"
    assert found.seconds["solve"] == pytest.approx(SHORT_S / 2)
    assert found.seconds["server"] == pytest.approx(2)


def test_without_spans_there_are_none() -> None:
    clock = Stopwatch()
    assert not clock.recording
    assert clock.dump("driver").spans is None
    assert Stopwatch(spans=True).recording


@pytest.mark.parametrize("lengths", [50, 1])
def test_too_many_spans_leave_the_longest(hands: Hands, lengths: int) -> None:
    clock = Stopwatch(spans=True, most_spans=100)
    for i in range(1000):
        with clock.part("outer"):
            hands.go(1e-3)
            with clock.part("inner"):
                hands.go(1e-3 * (1 + i % lengths))
    spans = clock.dump("driver").spans
    assert spans is not None
    assert 50 <= len(spans.seconds) <= 100
    assert spans.shortest_s > SHORT_S
    assert spans.seconds.min() >= spans.shortest_s
    inner = [i for i, part in enumerate(spans.part) if spans.parts[part] == "inner"]
    for i in inner:  # what a span lies in is there too: it was left at the same instant, right after
        assert spans.parts[spans.part[i + 1]] == "outer"
        assert spans.start_s[i + 1] < spans.start_s[i]
    assert clock.dump("").parts()["outer"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("spans", [False, True])
def test_entering_a_part_costs_next_to_nothing(spans: bool) -> None:
    """In units of reading the clock twice, which no stopwatch does without."""
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
