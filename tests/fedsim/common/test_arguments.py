"""Every public function names the argument that does not match its annotation."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import ArrayLike
from typing_extensions import TypeAliasType

import fedsim
from fedsim import analysis
from fedsim.analysis.statistics import audit, bootstrap
from fedsim.analysis.tables import closing
from fedsim.common import arguments
from fedsim.common.arguments import hints_of, unaliased
from fedsim.common.errors import ConfigError, FolderError
from fedsim.invariants import check
from fedsim.runs import replay
from fedsim.runs import resume as resuming
from fedsim.runs import verify as verifying
from fedsim.runs.fork import At, fork
from fedsim.runs.plan import plan as planning
from fedsim.studies import run as study
from fedsim.studies.load_study import load_study
from fedsim.worlds import importer as importing
from fedsim.worlds import join as compose
from fedsim.worlds import transforms as reshape
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import Trace

OWN = ("load_config", "combine")
"""Functions with their own checks: tests/fedsim/common/test_paths.py, tests/fedsim/server/test_combine.py."""
VALUES = ("Trace", "Direction", "Stack", "Result", "Combined", "RunConfig", "Algorithm", "Cell", "Comparison")
VALUES += (
    "ClaimResult",
    "ClaimedPair",
    "Curves",
    "Document",
    "Evaluation",
    "Finding",
    "FitComparison",
    "PairedDifference",
    "PublishedValue",
    "Run",
    "SpeedUp",
    "Study",
    "VarianceComponents",
    "WorldDiff",
    "WorldFit",
)
VALUES += ("POINTS", "QUARTILES_NOTE", "WorldSummary", "PlannedRun", "analysis")
VALUES += ("Attack", "ClientMethod", "Clock", "FederatedData", "Imported", "Importer", "Local", "Me", "Place")
VALUES += ("Scenario", "Selector", "Source", "Task", "Trained", "View")
"""Classes that other functions create, and arguments that are checked where they are used."""


def public(module: Any) -> list[Callable[..., Any]]:
    found = [getattr(module, name) for name in module.__all__ if name not in (*OWN, *VALUES)]
    return [each for each in found if not (isinstance(each, type) and issubclass(each, Exception))]


FUNCTIONS = [
    *public(fedsim),
    *public(analysis),
    *(
        resuming.resume,
        fork,
        At,
        replay.replay_config,
        replay.compare_participation,
        verifying.verify,
        check,
    ),
    *(
        planning.plan,
        make_trace,
        compose.join,
        importing.import_trace,
        load_study,
    ),
    *(
        study.opened,
        study.run_study,
    ),
    *(
        audit.audit_frame,
        audit.by_age,
        audit.realised,
        audit.useful_age,
        bootstrap.interval,
        bootstrap.mean_of,
    ),
    closing.closing,
    *(
        reshape.select,
        reshape.resample,
        reshape.crop,
        reshape.shift,
        reshape.scale,
        reshape.tile,
        reshape.ending,
    ),
    *(
        analysis.Run.frame,
        analysis.Run.unchecked,
        analysis.Run.final,
        analysis.Run.evaluations,
        analysis.Run.history,
    ),
    *(analysis.Evaluation.summary, analysis.Evaluation.without),
    *(
        analysis.Study.frame,
        analysis.Study.run,
        analysis.Study.asked,
        analysis.Study.axis,
        analysis.Study.baseline,
    ),
]


@dataclass
class Foreign:
    """An object that matches no annotation."""


ALWAYS = Trace.of([0], [0], [9], "online", clients=1, horizon_us=9)


def takes(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    named = inspect.signature(function).parameters
    return {n: p for n, p in named.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


CASES = [
    (function, name) for function in dict.fromkeys(FUNCTIONS) for name in takes(function) if name != "self"
]


def fitting(hint: Any) -> Any:
    """Return a value that matches an annotation; it need not be useful."""
    plain = {
        int: 1,
        float: 1.0,
        str: "x",
        bool: True,
        Path: Path("runs"),
        "DataFrame": pd.DataFrame(),
        pa.Table: pa.table({}),
    }
    hint = unaliased(hint)
    origin, of = get_origin(hint), get_args(hint)
    if hint is ArrayLike or origin is np.ndarray:
        return np.ones(2)
    if origin in (Union, types.UnionType):
        return fitting(of[0])
    if origin in (Literal, tuple):
        return of[0] if origin is Literal else tuple(map(fitting, of))
    if origin is Callable:
        return len
    if origin is not None:
        return {} if origin in (Mapping, dict) else []
    return object.__new__(hint) if hint not in plain else plain[hint]


@pytest.mark.parametrize(("function", "name"), CASES, ids=lambda v: getattr(v, "__qualname__", v))
def test_a_wrong_argument_is_named(function: Callable[..., Any], name: str) -> None:
    hints = hints_of(function.__init__ if isinstance(function, type) else function)  # type: ignore[misc]
    others = {n: p for n, p in takes(function).items() if p.default is p.empty and n != name}
    given = {n: fitting(hints[n]) if n in hints else None for n in others}
    with pytest.raises(
        ConfigError, match=f"^{'paths?' if name == 'paths' else name}: expected .*, found Foreign$"
    ):
        function(**given, **{name: Foreign()})


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda v: v.__qualname__)
def test_annotations_are_resolved_at_the_call(function: Callable[..., Any]) -> None:
    """An annotation that is not imported is compared by its name, so it must be a plain name."""
    target = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    for hint in hints_of(target).values():
        assert not isinstance(hint, str) or re.fullmatch(r"\w+", hint), hint


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda run: analysis.waste("runs/a"),
            "run: expected a Run, as analysis.open_run returns, found 'runs/a'",
        ),
        (lambda run: analysis.closing_table(run), "runs: expected a list of Runs, as .* returns, found Run$"),
        (lambda run: analysis.closing_table([run, 5]), r"runs\[1\]: expected a Run, .*, found 5$"),
        (
            lambda run: analysis.compare(run, run, at="stps"),
            ".*: at: there is no point 'stps' to compare runs at; did you mean 'steps'?",
        ),
        (lambda run: run.frame(5), "table: expected text, found 5$"),
        (lambda run: run.history(metrics="gini"), "metrics: expected a list of texts or None, found 'gini'$"),
        (
            lambda run: verifying.verify("a", steps=5),
            r"steps: expected \(a whole number, a whole number\) or None",
        ),
        (lambda run: At(step="1"), "step: expected a whole number or None, found '1'$"),  # type: ignore[arg-type]
        (lambda run: At(step=True), "step: expected a whole number or None, found True$"),
        (
            lambda run: At(step=10**400),
            r"step: expected a whole number below 2\^63 in size or None, found 1000",
        ),
        (lambda run: At(), r"expected At\(step=...\) or At\(time_us=...\), found neither"),
        (lambda run: At(step=1, time_us=1), r"expected At\(step=...\) or At\(time_us=...\), found both"),
        (lambda run: At(step=-1), "step: expected at least 0, found -1"),
        (lambda run: reshape.scale(5, compute=2), "trace: expected a Trace, as fedsim.read_trace"),  # type: ignore[arg-type]
        (lambda run: reshape.scale(ALWAYS, uplink=float("nan")), "uplink: expected a number, found nan$"),
        (
            lambda run: reshape.select(ALWAYS, 1),
            "clients: expected a list of whole numbers or an array of numbers",
        ),
        (lambda run: replace(ALWAYS, table=[1]), r"table: expected a Table, found list \[1\]$"),
        (lambda run: replace(ALWAYS, source=None), "source: expected text, found None$"),
        (lambda run: replace(ALWAYS, periods=5), "periods: expected a dict, found 5$"),
        (lambda run: bootstrap.interval(len, 5), "statistic: expected 10000 values, one for each draw"),
        (
            lambda run: bootstrap.interval(len, 5, 95),
            "confidence: expected a number between 0 and 1, found 95",
        ),
        (lambda run: bootstrap.mean_of(["a"]), "values: expected an array of numbers, found list"),  # type: ignore[arg-type]
    ],
)
def test_the_message_names_the_expected_type_and_its_source(call: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        call(analysis.Run(Path("runs/a"), {}, {}, "a"))


def test_numbers_and_lists_of_numpy_are_numbers_and_lists() -> None:
    assert At(step=np.int64(3)).step == 3  # type: ignore[arg-type]
    assert bootstrap.mean_of([1, 2])(np.ones((1, 2))) == 1.5  # type: ignore[arg-type]
    values = np.arange(9.0)
    assert bootstrap.interval(bootstrap.mean_of(values), np.int64(9), np.float64(0.9)) is not None  # type: ignore[arg-type]


Scalar = TypeVar("Scalar", bound=np.generic)
Alias = TypeAliasType("Alias", np.ndarray[Any, np.dtype[Scalar]], type_params=(Scalar,))
"""What `type Alias[Scalar] = ...` makes from Python 3.12 on; NDArray of NumPy 2.5 is made like this."""


@pytest.mark.parametrize(
    ("hint", "fits", "said"),
    [
        (Alias[np.float64], np.ones(2), "values: expected an array of numbers, found Foreign"),
        (
            Sequence[Alias[np.float64]],
            [np.ones(2)],
            r"values\[0\]: expected an array of numbers, found Foreign",
        ),
        (Alias[np.float64] | None, None, "values: expected an array of numbers or None, found Foreign"),
    ],
    ids=["array", "list", "optional"],
)
def test_an_alias_of_a_type_statement_is_what_it_stands_for(hint: Any, fits: Any, said: str) -> None:
    arguments.check("values", fits, hint)
    with pytest.raises(ConfigError, match=f"^{said}$"):
        arguments.check("values", [Foreign()] if isinstance(fits, list) else Foreign(), hint)


def test_an_empty_list_is_no_list_of_runs(tmp_path: Path) -> None:
    for write in (analysis.export_tensorboard, analysis.write_report):
        with pytest.raises(FolderError, match="at least one run"):
            write([], tmp_path / "out")
