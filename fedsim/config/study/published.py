"""`[published]` of a study, the values and claims of a paper's table, and how a claim is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from fedsim import plugins
from fedsim.common.errors import closest
from fedsim.config.section import Count, Section, Whole
from fedsim.config.study.axes import COLUMNS
from fedsim.config.study.compare import POINTS, Point, parse_point

Axes = Mapping[str, Iterable[str]]
"""The levels of each axis of a study."""
REST = "*"
"""In a claim: all levels that it does not name."""
_CLAIM = re.compile(r"\s*(?P<column>\w+)\s*:(?P<order>.*?)(?:\sfor\s(?P<where>[^<>:]*))?", re.DOTALL)
_WHERE = re.compile(r"\s*([\w]+)\s*=\s*([\w.-]+)\s*")
_SAME = re.compile(r"(?P<first>[^=<>]+)=(?P<second>[^=<>±]+)±\s*(?P<within>\d+(?:\.\d*)?|\.\d+)\s*")
_EXAMPLES = {"steps": "steps=500", "time": "time=6h", "bytes": "bytes=1GB"}
_GRAMMAR = 'such as "std_percent: fedfv < qffl1, qffl5 < *" or "mean_percent: fedfv = fedavg ± 2"'


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper or a reader says of the levels of an axis."""

    column: str
    """A metric or one of `clients`."""
    groups: tuple[tuple[str, ...], ...]
    """Levels by rising values: each value of a group is below each of the next group."""
    within: float | None = None
    """If set, the two levels differ by at most so much, and have no order."""
    where: tuple[tuple[str, str], ...] = ()
    """Other axes and their levels, if the claim is made for these levels alone."""

    def about(self, others: Mapping[str, str]) -> bool:
        """Return whether the claim is made for these levels of the other axes."""
        return all(others.get(axis) == level for axis, level in self.where)


def _pair(value: Any) -> Any:
    return (value, None) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _plain(value: tuple[float, float | None]) -> float | tuple[float, float]:
    mean, std = value
    return mean if std is None else (mean, std)


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Value = Annotated[
    tuple[float, Annotated[float, Field(ge=0)] | None],
    BeforeValidator(_pair, json_schema_input_type=float | tuple[float, float]),
    PlainSerializer(_plain),
]
"""A mean, or a mean and its standard deviation, at least 0, over the paper's runs."""
Claims = Annotated[
    tuple[str, ...],
    BeforeValidator(_several, json_schema_input_type=str | list[str]),
    Field(min_length=1),
]


class PublishedRow(Section):
    """One row of a paper's table, or the points of a figure's curve at one place."""

    levels: dict[str, str]
    """The level of one axis or several; the row holds for all levels of the others."""
    at: Point = "end"
    """Where the runs of the study count, if not at their ends: a point with a number, such as `steps=500`."""
    values: dict[str, Value]
    """By metric or name of a client: the mean, or the mean and its standard deviation over runs."""


class PublishedSection(Section):
    """`[published]`: what a paper reports. `fedsim compare --published` shows the study's results beside it."""

    source: str
    """The paper and its table."""
    runs: Count | None = None
    """The number of runs behind each published value."""
    spread: Literal["population", "sample"] = "sample"
    """How the paper's standard deviations over runs divide: by n (`population`) or by n - 1."""
    clients: dict[str, Whole] = Field(default_factory=dict)
    """Columns for the accuracy of single clients in percent: a name for each client's number."""
    rows: tuple[PublishedRow, ...] = ()
    """The published values."""
    claims: dict[str, Claims] = Field(default_factory=dict)
    """What the paper concludes: by sentence one order of levels or several."""

    def parsed(self) -> dict[str, tuple[Claim, ...]]:
        """Return the claims by sentence."""
        return {text: tuple(map(parse_claim, orders)) for text, orders in self.claims.items()}

    def faults_with(self, axes: Axes) -> Iterable[str]:
        """Yield a message for each claim that cannot be read, and each level or column that a study does not have."""
        known = {*self.clients, *plugins.names("metric")}
        for name in self.clients:
            if name in plugins.names("metric") or name in axes or name in COLUMNS:
                yield (
                    f"published.clients.{name}: a metric or an axis has this name, or a column of the study's tables: "
                    "choose another one"
                )
        for number, row in enumerate(self.rows):
            place = f"published.rows.{number}"
            for axis, level in row.levels.items():
                if axis not in axes:
                    yield f"{place}.levels.{axis}: there is no axis {axis!r}{closest(axis, axes)}"
                elif level not in axes[axis]:
                    yield f"{place}.levels.{axis}: there is no level {level!r}{closest(level, axes[axis])}"
            if row.at in POINTS and row.at != "end":
                example = _EXAMPLES[row.at]
                yield f"{place}.at: expected end or a point with a number, such as {example}, found {row.at!r}"
            yield from (f"{place}.values: {_no_column(c, known)}" for c in row.values if c not in known)
            yield from (f"{place}: {fault}" for fault in _repeated(row, self.rows[:number]))
            if not row.values:
                yield f"{place}.values: expected a value by metric or client, such as mean_percent = 80, found none"
        for text, orders in self.claims.items():
            yield from (f"published.claims.{text}: {fault}" for fault in faults_of(orders, known, axes))


def _repeated(row: PublishedRow, before: Sequence[PublishedRow]) -> Iterable[str]:
    """Yield a message for each earlier row with a value for the same column and levels."""
    for number, other in enumerate(before):
        same = parse_point(row.at) == parse_point(other.at)
        same &= all(row.levels.get(axis, level) == level for axis, level in other.levels.items())
        twice = [column for column in row.values if column in other.values]
        if same and twice:
            yield f"{twice[0]} has a value for the same levels in published.rows.{number}"


def faults_of(orders: Iterable[str], columns: Iterable[str], axes: Axes) -> Iterable[str]:
    """Yield what is wrong with the orders of one statement, for a study with these columns and axes."""
    about: dict[str, None] = {}
    for order in orders:
        try:
            claim = parse_claim(order)
        except ValueError as error:
            yield str(error)
            continue
        if claim.column not in columns:
            yield _no_column(claim.column, columns)
        yield from _unknown_levels(claim, axes)
        if axis := axis_of(claim, axes):
            about[axis] = None
            if len(rest_of(claim.groups, axes[axis])) < 2:
                yield f"expected levels of {axis} that * stands for, found none beside those in {order!r}"
    if len(about) > 1:
        yield f"expected orders of the levels of one axis, found {' and '.join(about)}: make a statement for each"


def _no_column(name: str, known: Iterable[str]) -> str:
    return f"there is no metric or client {name!r}{closest(name, known)}"


def _unknown_levels(claim: Claim, axes: Axes) -> Iterable[str]:
    for axis, level in claim.where:
        if axis not in axes:
            yield f"for {axis}={level}: there is no axis {axis!r}{closest(axis, axes)}"
        elif level not in axes[axis]:
            yield f"for {axis}={level}: there is no level {level!r}{closest(level, axes[axis])}"
    named_axes = [axis for axis, _ in claim.where]
    if twice := next((axis for axis in named_axes if named_axes.count(axis) > 1), None):
        yield f"for: expected each axis once, found {twice} twice"
    named = [level for group in claim.groups for level in group if level != REST]
    having = [axis for axis, levels in axes.items() if set(named) <= set(levels)]
    if len(having) == 1 and axis_of(claim, axes) is None:
        yield f"for {having[0]}=...: the order is that of the levels of {having[0]}: expected another axis"
    elif len(having) > 1 and axis_of(claim, axes) is None:
        yield (
            f"{' and '.join(having)} have the levels {', '.join(named)}: rename those of one, or name a level of the "
            f"other axis, such as for {having[-1]}={next(iter(axes[having[-1]]))}"
        )
    elif not having:
        every = [level for levels in axes.values() for level in levels]
        unknown = [level for level in named if level not in every]
        yield from (f"there is no level {level!r}{closest(level, every)}" for level in unknown)
        if not unknown:
            yield f"expected levels of one axis, found {', '.join(named)}"


def axis_of(claim: Claim, axes: Axes) -> str | None:
    """Return the only axis that has all levels of a claim and is not named behind `for`; None if there is none."""
    named = {level for group in claim.groups for level in group} - {REST}
    behind = {axis for axis, _ in claim.where}
    having = [axis for axis, levels in axes.items() if axis not in behind and named <= set(levels)]
    return having[0] if len(having) == 1 else None


def parse_claim(text: str) -> Claim:
    """Read `column: a < b, c < *`, the same with `>`, or `column: a = b ± 2`. Raises ValueError.

    `for axis=level` may follow, several with commas.
    """
    match = _CLAIM.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a column and an order of levels, {_GRAMMAR}, found {text!r}")
    column, order, where = match["column"], match["order"], _where(match["where"], text)
    if same := _SAME.fullmatch(order):
        pair = [(same[side].strip(),) for side in ("first", "second")]
        return Claim(column, _each_once(pair, text), float(same["within"]), where)
    signs = set(re.findall("[<>=]", order))
    if signs == {"="}:
        raise ValueError(f"expected two levels and by how much they may differ, {_GRAMMAR}, found {text!r}")
    if len(signs) != 1 or "=" in signs:
        raise ValueError(f"expected an order by < or >, not both, {_GRAMMAR}, found {text!r}")
    groups = _each_once([_levels(part, text) for part in re.split("[<>]", order)], text)
    return Claim(column, groups if signs == {"<"} else groups[::-1], None, where)


def _each_once(groups: Sequence[tuple[str, ...]], text: str) -> tuple[tuple[str, ...], ...]:
    """Return groups of levels. Raises ValueError for a level that is named twice."""
    named = [level for group in groups for level in group]
    if len(set(named)) < len(named):
        raise ValueError(f"expected each level once, found {text!r}")
    return tuple(groups)


def _where(part: str | None, text: str) -> tuple[tuple[str, str], ...]:
    """Read the axes and levels behind `for`. Raises ValueError."""
    each = [_WHERE.fullmatch(one) for one in part.split(",")] if part is not None else []
    if None in each:
        raise ValueError(f'expected axis=level behind for, such as "x: a < b for data=iid", found {text!r}')
    return tuple((match[1], match[2]) for match in each if match)


def _levels(part: str, text: str) -> tuple[str, ...]:
    levels = tuple(level.strip() for level in part.split(","))
    if not all(levels):
        raise ValueError(
            f"expected a level, or several with commas, on each side, {_GRAMMAR}, found {text!r}"
        )
    return levels


def rest_of(named: Sequence[tuple[str, ...]], levels: Iterable[str]) -> list[tuple[str, ...]]:
    """Return groups of levels with `*` replaced by the levels that no group names; a group without any is left out."""
    used = {level for group in named for level in group}
    others = tuple(level for level in levels if level not in used)
    groups = [tuple(x for level in group for x in (others if level == REST else (level,))) for group in named]
    return [group for group in groups if group]
