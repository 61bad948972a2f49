"""Select exactly the clients that an earlier run chose, when it chose them: `fedsim replay RUN --same-participation`.

In the same world, with the same pacing and the same costs of a job, the same clients are lost and arrive at the same
instants, so that two runs differ by their rules alone. A difference in timing is an error; no other client is chosen.
The inclusion probabilities are those that the recorded run stated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedsim.common.errors import ConfigError, RunError
from fedsim.common.files import from_json, read_parquet
from fedsim.common.units import show_us
from fedsim.engine.selector import Choice, Clients, Floats, Selector, State, View

_COLUMNS = ("job", "client", "version", "dispatch_us", "end_us", "attempt")
_INCLUSION = "inclusion"
_FIELDS = [pa.field(name, pa.int64(), nullable=False) for name in _COLUMNS]
_SCHEMA = pa.schema([*_FIELDS, pa.field(_INCLUSION, pa.float64(), nullable=False)])
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class _Record:
    """The clients that a run chose, in order, without repeated attempts of a job."""

    client: Clients
    version: Clients
    """Server steps taken before each choice."""
    dispatch_us: Clients
    inclusion: Floats
    """With which probability the recorded run included each of them."""
    end_us: int
    """Virtual time at which the run ended."""


def replayed(*, jobs: Path) -> Selector:
    """Choose exactly the clients that a recorded run chose, when it chose them.

    Args:
        jobs: path of the recorded run's `jobs.parquet`; the manifest beside it tells when the run ended.
    """
    record = _recorded(jobs)

    def select(view: View, k: int, rng: np.random.Generator, state: State) -> tuple[Choice, State]:
        first = int(state["next"])
        _check_keeps_up(jobs, record, first, view)
        until = first + int(np.searchsorted(record.dispatch_us[first:], view.now_us, side="right"))
        now = record.dispatch_us[first:until] == view.now_us
        now &= record.version[first:until] == view.step
        chosen = record.client[first:until][now][:k]
        foreign = chosen[~np.isin(chosen, view.candidates)]
        if len(foreign):
            raise RunError(
                f"{jobs}: client {foreign[0]} was given a job at {show_us(view.now_us)}, and in this run it is offline "
                "or busy then: its world or timing differs from that of the recorded run"
            )
        return Choice(chosen, record.inclusion[first:until][now][:k]), {"next": first + len(chosen)}

    return Selector(select, lambda: {"next": 0})


def _check_keeps_up(jobs: Path, record: _Record, first: int, view: View) -> None:
    """Raise RunError if a recorded job should have been dispatched before now, or if the record has ended."""
    here = f"this run is at {show_us(view.now_us)}, step {view.step}, already"
    if first == len(record.client):
        if view.now_us > record.end_us:
            raise RunError(
                f"{jobs}: the recorded run ended at {show_us(record.end_us)}, and {here}: its timing differs from that "
                "of the recorded run, or it goes on for longer"
            )
        return
    time_us, step = int(record.dispatch_us[first]), int(record.version[first])
    if time_us < view.now_us or step < view.step:
        raise RunError(
            f"{jobs}: client {record.client[first]} was given a job at {show_us(time_us)}, step {step}, and {here}: "
            "its timing differs from that of the recorded run"
        )


def _recorded(jobs: Path) -> _Record:
    try:
        table = read_parquet(jobs, ConfigError, (*_COLUMNS, _INCLUSION)).sort_by("job").cast(_SCHEMA)
    except (ValueError, pa.ArrowException) as error:
        raise ConfigError(f"{jobs}: not the jobs.parquet of a run: {error}") from error
    column = {name: table[name].to_numpy() for name in _SCHEMA.names}
    chosen = column["attempt"] == 0
    names = ("client", "version", "dispatch_us", _INCLUSION)
    client, version, dispatch_us, inclusion = (column[name][chosen] for name in names)
    return _Record(client, version, dispatch_us, inclusion, _end_us(jobs, column["end_us"]))


def _end_us(jobs: Path, ends_us: Clients) -> int:
    """Return when the run ended: the time in its manifest, otherwise the end of its last job."""
    last_us = int(ends_us.max(initial=0))
    try:
        end_us = from_json((jobs.parent / _MANIFEST).read_text(encoding="utf-8"))["virtual_us"]
    except (OSError, ValueError, TypeError, KeyError):
        return last_us
    return max(int(end_us), last_us) if isinstance(end_us, int) else last_us
