"""Sentences about numbers: differences with their intervals, shares, lists of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsim.analysis.statistics.contrasts import Contrast, Verdict

_NAMED = 3
"""Most names in one clause; the others are counted."""
_MOST_DIGITS = 4
_NOTHING = 1e-9
"""An end of an interval below this is rounding, and counts as 0."""
FEW_CLIENTS = "too few clients for an interval"


@dataclass(frozen=True, slots=True)
class Claims:
    """A clause for each verdict about differences.

    `{these}` stands for names with numbers, `{are}` for the verb, `{base}` for the baseline.
    """

    better: str
    worse: str
    unconfirmed: str
    unseen: str
    unit: str = "points"
    base: str = ""
    level: str = ""
    """The baseline's own number, which the first clause names."""


def told(contrasts: Sequence[Contrast], claims: Claims) -> str:
    """Return the clauses about differences, one for each verdict that occurs; of many it names the largest."""
    clauses: Mapping[Verdict, str] = {
        "better": claims.better,
        "worse": claims.worse,
        "unconfirmed": claims.unconfirmed,
        "unseen": claims.unseen,
    }
    parts: list[str] = []
    for verdict, clause in clauses.items():
        chosen = [each for each in contrasts if each.verdict == verdict]
        if len(chosen) > _NAMED:
            chosen.sort(key=lambda each: abs(each.mean), reverse=True)
        if chosen:
            these = listed([f"{each.name} ({difference(each, claims)})" for each in chosen])
            base = f"{claims.base} ({claims.level})" if claims.level and not parts else claims.base
            parts.append(clause.format(these=these, are="is" if len(chosen) == 1 else "are", base=base))
    return "; ".join(parts)


def difference(contrast: Contrast, claims: Claims) -> str:
    """Return a difference with its interval, such as `+2.6 points [+0.9, +4.3]`; an end other than 0 is not 0."""
    ends = [0.0 if abs(end) < _NOTHING else end for end in contrast.interval or ()]
    least = 1 if claims.unit == "points" else 3
    fits = (d for d in range(least, _MOST_DIGITS + 1) if all(round(end, d) or not end for end in ends))
    digits = next(fits, _MOST_DIGITS)
    around = f" [{ends[0]:+.{digits}f}, {ends[1]:+.{digits}f}]" if ends else f", {_few(contrast)}"
    return f"{contrast.mean:+.{digits}f} {claims.unit}{around}".replace("-", "−")


def _few(contrast: Contrast) -> str:
    return FEW_CLIENTS if contrast.seeds is None else f"no interval from {seeds(contrast.seeds)}"


def seeds(n: int) -> str:
    """Return a number of seeds, such as `1 seed`."""
    return f"{n} seed{'s' * (n != 1)}"


def listed(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`, `a, b, c and 4 more`."""
    named = list(names[:_NAMED])
    if len(names) > _NAMED:
        named.append(f"{len(names) - _NAMED} more")
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def shares(parts: Mapping[str, tuple[int, int]], things: str, each: str) -> str:
    """Return a part of a whole by name in words: `63 of 3,638 jobs (1.7 %)`, `1.7 % (a) to 2.4 % (b) of the jobs`.

    `each` says what the names are if their numbers are equal, such as `in each run`.
    """
    known = {name: pair for name, pair in parts.items() if pair[1] > 0}
    if len(set(known.values())) == 1:
        part, whole = next(iter(known.values()))
        beside = f" {each}" if len(known) > 1 else ""
        return f"{part:,} of {whole:,} {things} ({100 * part / whole:.1f} %){beside}"
    return f"{spread({name: 100 * part / whole for name, (part, whole) in known.items()})} of the {things}"


def spread(values: Mapping[str, float]) -> str:
    """Return the least and the largest of percentages with their names; a single number if they are equal."""
    low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    texts = [f"{values[name]:.1f} %" for name in (low, high)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} ({low}) to {texts[1]} ({high})"


def sentence(text: str) -> str:
    """Return a text with a full stop at its end."""
    return text if text.endswith((".", "!", "?")) else f"{text}."
