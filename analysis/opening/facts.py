"""Facts about a run in words, from its manifest and configuration, of which any part may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedsim.analysis.opening.run import Run
from fedsim.analysis.opening.tables import word_counts
from fedsim.common.units import show_bytes, show_us

_SECTIONS = (
    "seeds",
    "task",
    "model",
    "partition",
    "world",
    "pacing",
    "selection",
    "train",
    "client",
    "algorithm",
    "memory",
    "cost",
    "dropout",
    "stop",
    "evaluate",
)


def troubles(run: Run) -> Iterator[str]:
    """Yield a sentence for each thing that makes a run incomplete."""
    status, error = run.status, run.manifest.get("error")
    if status != "done":
        because = f": {error}" if error else ""
        yield f"{run.label}: the run is not complete (status {status}{because}). The page shows what it recorded."
    if not len(run.jobs):
        yield f"{run.label}: no job was recorded."
    if not run.evaluations():
        yield f"{run.label}: no evaluation on the {run.split} split was recorded."


def facts(run: Run) -> list[tuple[str, str]]:
    """Return names and values: configuration, machine and outcome of a run. Unknown values are left out."""
    manifest = run.manifest
    rows = [
        ("rule", manifest.get("rule")),
        *(
            (name, _settings(run.config[name]))
            for name in _SECTIONS
            if isinstance(run.config.get(name), dict)
        ),
        *(("adversary", _settings(each)) for each in _adversaries(run.config)),
        ("seed", manifest.get("seed")),
        ("status", _ended(run)),
        ("virtual time", show_us(run.virtual_us)),
        ("jobs", _counts(word_counts(run.jobs["status"]))),
        ("waits for clients", manifest.get("waits")),
        ("wall time, s", _counts(_mapping(manifest, "wall_s"))),
        ("memory", _memory(_mapping(manifest, "memory"))),
        ("computed on", _machine(manifest)),
        ("started", manifest.get("started")),
        ("versions", _counts(_mapping(manifest, "versions"), " ")),
        ("digest", manifest.get("digest")),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def _adversaries(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tables of attacks: a list of tables, or a single table."""
    attacks = config.get("adversary")
    return [each for each in (attacks if isinstance(attacks, list) else [attacks]) if isinstance(each, dict)]


def _mapping(section: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = section.get(key)
    return value if isinstance(value, dict) else {}


def _settings(section: Mapping[str, Any]) -> str:
    """Write a table of the configuration in one line, its name first."""
    named = [str(section["name"])] if "name" in section else []
    return ", ".join(named + [f"{key} = {_value(value)}" for key, value in section.items() if key != "name"])


def _value(value: Any) -> str:
    return f"({_settings(value)})" if isinstance(value, dict) else str(value)


def _ended(run: Run) -> str:
    by = f", ended by {run.manifest['ended_by']}" if run.manifest.get("ended_by") else ""
    return f"{run.status}{by}"


def _counts(values: Mapping[str, Any], between: str = ": ") -> str:
    return ", ".join(f"{k}{between}{round(v, 2) if isinstance(v, float) else v}" for k, v in values.items())


def _memory(memory: Mapping[str, Any]) -> str:
    predicted = _mapping(memory, "predicted_bytes").get("total")
    parts = (("predicted", predicted), ("peak", memory.get("peak_bytes")))
    return ", ".join(
        f"{name} {show_bytes(value)}" for name, value in parts if isinstance(value, (int, float))
    )


def _workers(manifest: Mapping[str, Any]) -> str:
    workers = manifest.get("workers")
    if workers is None:
        return ""
    if workers:
        return f"{workers} workers"
    threads = manifest.get("threads") or 1
    return "in one process" + (f" with {threads} threads" if threads > 1 else "")


def _machine(manifest: Mapping[str, Any]) -> str:
    hardware = _mapping(manifest, "hardware")
    parts = [str(manifest.get("device") or ""), _workers(manifest)]
    parts += [str(hardware.get(key) or "") for key in ("gpu", "cpu", "instructions")]
    parts.append(f"{hardware['cores']} cores" if "cores" in hardware else "")
    return ", ".join(part for part in parts if part)
