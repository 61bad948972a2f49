"""Work in several threads: results in order, complete, with the error of a part that fails."""

from __future__ import annotations

import threading
import time

import pytest

from fedsim.common import threads
from fedsim.common.errors import ConfigError
from fedsim.common.threads import at_most, each, in_order


@pytest.mark.parametrize(("threads", "worth"), [(1, True), (3, False), (3, True)])
def test_results_come_in_the_order_of_the_parts(threads: int, worth: bool) -> None:
    names = set()

    def late_first(part: int) -> int:
        names.add(threading.current_thread().name)
        time.sleep(0.002 * (20 - part) / 20)
        return part**2

    with at_most(threads):
        assert list(in_order(late_first, range(20), worth=worth)) == [part**2 for part in range(20)]
    alone = threading.current_thread().name in names
    assert (len(names) == 1 and alone) if threads == 1 or not worth else (len(names) > 1 and not alone)


def test_parts_run_side_by_side() -> None:
    both = threading.Barrier(2, timeout=20)
    with at_most(2):
        each(lambda _: both.wait(), range(4), worth=True)
    assert not both.broken


def test_the_error_of_a_part_is_raised_and_later_work_succeeds() -> None:
    with at_most(2):
        with pytest.raises(ZeroDivisionError):
            each(lambda part: 1 / part, [1, 0, 2], worth=True)
        assert list(in_order(str, range(3), worth=True)) == ["0", "1", "2"]


def test_no_thread_works_after_a_part_has_failed() -> None:
    done: list[int] = []

    def work(part: int) -> None:
        if part == 0:
            raise KeyError
        time.sleep(0.05)
        done.append(part)

    with at_most(3), pytest.raises(KeyError):
        each(work, range(100), worth=True)
    now = len(done)
    assert now < 10
    time.sleep(0.1)
    assert len(done) == now


def test_closing_the_results_cancels_the_remaining_parts() -> None:
    started: list[int] = []
    with at_most(2):
        results = in_order(lambda part: started.append(part) or part, range(100), worth=True)
        assert next(results) == 0
        results.close()  # type: ignore[attr-defined]
    assert len(started) <= 5


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("3", 3), ("64", 64)])
def test_the_environment_variable_sets_the_number(
    text: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threads.default_most() > 0
    monkeypatch.setenv("FEDSIM_THREADS", text)
    assert threads.default_most() == count


@pytest.mark.parametrize("text", ["0", "", "-1", "two", "2.0", "²", "99999"])
def test_an_impossible_number_of_threads_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_THREADS", text)
    with pytest.raises(ConfigError, match="FEDSIM_THREADS: expected a number from 1 to 1024, found"):
        threads.default_most()


def test_a_limit_ends_with_its_block() -> None:
    """Also after an error."""
    caller = threading.current_thread().name
    with at_most(2):
        with pytest.raises(KeyError), at_most(1):
            raise KeyError
        assert caller not in in_order(lambda _: threading.current_thread().name, range(2), worth=True)
