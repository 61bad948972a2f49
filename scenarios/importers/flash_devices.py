"""FLASH's device tables: phones, and the one of three classes that each trains like.

Any of these files may be imported together; each is recognised by its content:
- `benchmark2score.json`: benchmark name to AI score (points, higher is faster);
- `raw_ai_benchmark_list.json`: phones with `Model`, `CPU`, `RAM`, `AI_Score` (which may hold two numbers), all texts;
- `real2benchmark.json`: Android model to benchmark name or `unknown`; needs scores from one of the two above;
- `supported_devices.json`: the three phones that represent the classes slow, middle, fast.
Clients are the Android models if there are any, else the phones with scores (those of the list, and those that only
the other file names), else the three. A phone has the class of the supported phone with the nearest score; for a phone
without a score FLASH draws a class. `reading/flash_classes.py` has the time that a class takes for a batch. Source:
PKU-Chengxu/FLASH, `models/utils/device_util`, `models/device.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedsim.common.errors import ConfigError, TraceError
from fedsim.scenarios.importers.reading.files import (
    Problems,
    json_of,
    member,
    of_type,
    positive,
    shown,
    speed_table,
)
from fedsim.scenarios.importers.reading.flash_classes import (
    BATCH_MS,
    BATCH_SIZES,
    CLASSES,
    PHONES,
    Task,
    drawn,
    nearest,
)
from fedsim.worlds.importer import Imported, Importer, Source


def flash_devices(
    *,
    task: Task = "femnist",
    batch_size: int | None = None,
    unknown: Literal["draw", "drop"] = "draw",
    seed: int = 0,
) -> Importer:
    """Compute speeds of phones by FLASH's classes; the spread of a class is kept as `compute_cv`.

    Args:
        task: FLASH's task whose mean time for a batch is taken.
        batch_size: number of samples by which the time for a batch is divided; None: 100 for "shakespeare", else 10.
        unknown: what becomes of phones without a score: "draw" gives them a class drawn with FLASH's weights, "drop"
            leaves them out.
        seed: seed of these draws.
    """
    size = BATCH_SIZES[task] if batch_size is None else batch_size
    if size < 1:
        raise ConfigError(f"importer option 'batch_size': expected at least 1, found {size}")

    def read(sources: Sequence[Source]) -> Imported:
        tables = _tables(sources)
        phones = _phones(tables, sources)
        scores = [_score_of(name, tables, sources) for name in tables.supported]
        kept = [p for p in phones if p.score is not None or unknown == "draw"]
        if not kept:
            raise TraceError(f"{sources[0].name}: expected phones, found none with a score")
        classes = [nearest(p.score, scores) if p.score is not None else drawn(p.id, seed) for p in kept]
        seconds = [BATCH_MS[task][number][0] / 1000 / size for number in classes]
        facts = _facts(kept, classes, task, has_scores=bool(tables.scores))
        counts = {name: classes.count(i) for i, name in enumerate(CLASSES)}
        notes = {"classes": counts, f"without_a_score_{unknown}": sum(p.score is None for p in phones)}
        return Imported(speed_table([p.id for p in kept], {"compute": seconds}, facts), notes)

    return Importer(
        recognises=lambda source: _form(source) is not None,
        read=read,
        licence="BSD-2-Clause (PKU-Chengxu/FLASH); scores from the AI Benchmark",
        units=f"compute: mean ms a batch of {task} / 1000 / {size} samples",
    )


@dataclass(frozen=True, slots=True)
class _Phone:
    id: str
    name: str | None
    score: float | None
    cpu: str | None = None
    ram: str | None = None


@dataclass(slots=True)
class _Tables:
    """The content of all files; keys of `scores` are benchmark names in lower case."""

    scores: dict[str, float] = field(default_factory=dict)
    listed: list[_Phone] = field(default_factory=list)
    models: dict[str, str] = field(default_factory=dict)
    supported: Sequence[str] = PHONES


_SCORE = re.compile(r'\s*\{\s*"[^"]+"\s*:\s*-?\d+\s*[,}]')
_NAME = re.compile(r'\s*\{\s*"[^"]+"\s*:\s*"[^"]*"\s*[,}]')
_LISTED = re.compile(r'\s*\[\s*\{[^}]*"AI_Score"')
_SUPPORTED = re.compile(r'\s*\[\s*"[^"]+"\s*,\s*"[^"]+"\s*,\s*"[^"]+"\s*\]\s*')


def _form(source: Source) -> str | None:
    """Return which of the four files this is, by its beginning; None for another file."""
    head = source.data[:8192].decode("utf-8-sig", errors="replace")
    if _SUPPORTED.fullmatch(head):
        return "supported"
    forms = {"scores": _SCORE, "models": _NAME, "listed": _LISTED}
    return next((name for name, begin in forms.items() if begin.match(head)), None)


def _tables(sources: Sequence[Source]) -> _Tables:
    tables, problems = _Tables(), Problems()
    scores: dict[str, float] = {}
    named: dict[str, _Phone] = {}
    for source in sources:
        content, form = json_of(source), _form(source)
        with problems.caught():
            if form == "scores":
                items = of_type(content, dict, source.name).items()
                scores |= {k.casefold(): positive(v, f"{source.name}, {k!r}") for k, v in items}
                named |= {k.casefold(): _Phone(k, k, scores[k.casefold()]) for k, _ in items}
            elif form == "models":
                items = of_type(content, dict, source.name).items()
                tables.models |= {k: of_type(v, str, f"{source.name}, {k!r}") for k, v in items}
            elif form == "supported":
                tables.supported = of_type(content, list, source.name)
            else:
                entries = of_type(content, list, source.name)
                tables.listed += [_listed(e, f"{source.name}, entry {i}") for i, e in enumerate(entries)]
    problems.check()
    listed = {phone.id.casefold() for phone in tables.listed}
    tables.listed += [phone for name, phone in named.items() if name not in listed]
    tables.scores = {p.id.casefold(): p.score for p in tables.listed if p.score is not None} | scores
    return tables


def _listed(entry: Any, place: str) -> _Phone:
    name = of_type(member(entry, "Model", place), str, f"{place}, 'Model'")
    text = of_type(member(entry, "AI_Score", place), str, f"{place}, 'AI_Score'").split()
    score = positive(text[0] if text else "", f"{place}, 'AI_Score'")
    cpu, ram = (entry.get(key) for key in ("CPU", "RAM"))
    texts = [of_type(t, str, place) if t is not None else None for t in (cpu, ram)]
    return _Phone(name, name, score, *texts)


def _facts(
    phones: Sequence[_Phone], classes: Sequence[int], task: Task, has_scores: bool
) -> dict[str, Sequence[Any]]:
    return {
        "model": [p.id for p in phones],
        "benchmark_name": [p.name for p in phones],
        "score": [p.score if has_scores else None for p in phones],
        "class": [CLASSES[number] for number in classes],
        "compute_cv": [
            deviation / mean for mean, deviation in (BATCH_MS[task][number] for number in classes)
        ],
        "cpu": [p.cpu for p in phones],
        "ram": [p.ram for p in phones],
    }


def _phones(tables: _Tables, sources: Sequence[Source]) -> list[_Phone]:
    """Return the clients: Android models if the files have some, else phones with scores, else the supported ones."""
    if not tables.models:
        return tables.listed or [_Phone(name, name, float(i)) for i, name in enumerate(tables.supported)]
    if not tables.scores:
        raise TraceError(
            f"{sources[0].name}: names without scores; give benchmark2score.json or raw_ai_benchmark_list.json as well"
        )
    return [_Phone(m, name, tables.scores.get(name.casefold())) for m, name in tables.models.items()]


def _score_of(name: Any, tables: _Tables, sources: Sequence[Source]) -> float:
    of_type(name, str, f"{sources[0].name}, supported phone")
    if not tables.scores:
        return float(tables.supported.index(name))
    if name.casefold() not in tables.scores:
        raise TraceError(f"{sources[0].name}: the supported phone {shown(name)} has no score")
    return tables.scores[name.casefold()]
