"""The tool behind `make mutants`: what it changes, and that an exchanged module behaves as the mutant's source says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

import mutants
from mutators import RemoveCall, SwapMembership, SwapOpposites, places

SOURCE = dedent(
    """
    from __future__ import annotations

    LIMIT = 3

    def below(x: int | None, limit: int = LIMIT) -> bool:
        def inside() -> bool:
            return x < limit
        return inside()

    class Box:
        size = 7
    """
)


@pytest.mark.parametrize(
    "operator", [RemoveCall(), SwapMembership(), SwapOpposites()], ids=lambda o: type(o).__name__
)
def test_examples_of_our_operators(operator: RemoveCall | SwapMembership | SwapOpposites) -> None:
    for example in operator.examples():
        made = [make() for makers in places(example.pre_mutation_code).values() for name, make in makers]
        assert example.post_mutation_code in made


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An imported module that another one has names from."""
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mutated.py").write_text(SOURCE)
    (tmp_path / "user_of_it.py").write_text("from mutated import below, LIMIT, Box\n")
    import_module("user_of_it")
    yield tmp_path / "mutated.py"
    sys.modules.pop("mutated")
    sys.modules.pop("user_of_it")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("x < limit", "x <= limit", (True, True, 3, 7)),  # inside a nested function
        ("LIMIT = 3", "LIMIT = 2", (False, False, 2, 7)),  # a constant, which is a default as well
        ("size = 7", "size = 8", (True, False, 3, 8)),  # in the body of a class
    ],
)
def test_users_of_a_module_meet_the_mutant(
    module: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, expected: tuple[object, ...]
) -> None:
    user = sys.modules["user_of_it"]
    monkeypatch.setitem(mutants.FUNCTIONS, str(module), [user.below])
    source = SOURCE.replace(before, after)
    mutants.exchange(mutants.Mutant("mutated.py", 1, "", before, after, source))
    assert (user.below(2), user.below(3), user.LIMIT, user.Box.size) == expected


def test_annotations_are_left_alone_but_for_numbers() -> None:
    at = mutants.annotations("def f(x: int | None, y: float = 1 + 2) -> int | None: ...\n")
    assert (1, 13) in at
    assert (1, 34) not in at


def test_what_tests_a_module_is_found_by_imports() -> None:
    assert "tests/fedsim/engine/test_event_loop.py" in mutants.tests_for(["fedsim/engine/event_loop.py"])
    assert "tests/algorithms/test_every_rule.py" in mutants.tests_for(["algorithms/fedavg.py"])
    assert "tests/fedsim/runs/test_replay.py" in mutants.tests_for(["algorithms/selection/replayed.py"])
    assert not mutants.imports("from fedsim.engine.event_loop_of import x", "fedsim.engine.event_loop")
    assert mutants.imports("from fedsim.engine import event_loop", "fedsim.engine.event_loop")


def test_a_mutant_that_no_test_runs_survives() -> None:
    mutant = mutants.Mutant(
        "tests/helpers/here.py", 1, "", "", "", (mutants.ROOT / "tests" / "helpers" / "here.py").read_text()
    )
    assert list(mutants.in_order([])) == []
    assert mutants.forked(lambda: mutants.first_failure([], None), 5) == ("done", None)
    assert mutants.forked(lambda: mutant.key, 5) == ("done", mutant.key)
    assert mutants.forked(lambda: 1 // 0, 5)[0] == "crash"


def test_changes_that_make_no_difference_are_of_code_that_is_there() -> None:
    root = Path(__file__).resolve().parents[2]
    for file, before, _ in mutants.equivalents():
        assert " ".join(before.split()) in " ".join((root / file).read_text(encoding="utf-8").split()), file
