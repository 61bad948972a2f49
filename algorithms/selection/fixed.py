"""Select clients from a fixed plan: the same ones in every step, or those that a table names for each step.

Known to the server: who is online.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.csv
from pydantic import Field

from fedsim.common.errors import ConfigError, closest
from fedsim.common.files import read_parquet
from fedsim.engine.selector import Choice, Ints, Selector, View, stateless

Client = Annotated[int, Field(ge=0)]


def fixed(*, clients: list[Client] | None = None, table: Path | None = None) -> Selector:
    """Choose the named clients that are online and idle, in the order of the plan.

    The plan is either `clients` or `table`.

    Args:
        clients: numbers of the clients to choose in every step.
        table: a CSV or Parquet file with the columns `step` (steps taken so far, from 0) and `client`; steps that it
            does not name choose no client.
    """
    if (clients is None) == (table is None):
        raise ConfigError("selector 'fixed' takes either the option 'clients' or the option 'table'")
    if clients is not None and not clients:
        raise ConfigError("selector 'fixed', option 'clients': expected at least one client, found none")
    always = np.asarray(clients or [], dtype=np.int64)
    steps, members = _read(table) if table else (always, always)
    highest = int(members.max(initial=0))

    def select(view: View, k: int, rng: np.random.Generator) -> Choice:
        if highest >= view.n_clients:  # checked for later steps too, before a run gets there
            raise ConfigError(
                f"selector 'fixed': expected clients from 0 to {view.n_clients - 1}, found {highest}"
            )
        wanted = always
        if table is not None:
            wanted = members[slice(*np.searchsorted(steps, [view.step, view.step + 1]))]
        _, first = np.unique(wanted, return_index=True)
        once = wanted[np.sort(first)]
        return Choice.certain(once[np.isin(once, view.candidates)][:k])

    return stateless(select, draws=False)


def _read(path: Path) -> tuple[Ints, Ints]:
    """Return the steps of a table in ascending order, and its clients, those of a step in the table's order."""
    try:
        table = read_parquet(path, ConfigError) if path.suffix == ".parquet" else pyarrow.csv.read_csv(path)
        names = table.column_names  # raises if a name is no text
    except (OSError, ValueError, pa.ArrowException, ConfigError) as error:
        raise ConfigError(f"selector 'fixed', option 'table': cannot read {path}: {error}") from error
    steps, clients = (_column(table, names, name, path) for name in ("step", "client"))
    order = np.argsort(steps, kind="stable")
    return steps[order], clients[order]


def _column(table: pa.Table, names: list[str], name: str, path: Path) -> Ints:
    if names.count(name) != 1:
        count = "no column" if name not in names else "more than one column"
        raise ConfigError(f"{path} has {count} {name!r}{closest(name, set(names) - {name})}")
    column = table.column(name)
    if not pa.types.is_integer(column.type):
        raise ConfigError(f"{path}, column {name!r}: expected whole numbers, found {column.type}")
    try:
        values = np.asarray(column.cast(pa.int64()).fill_null(-1).to_numpy())
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{path}, column {name!r}: {error}") from error
    bad = np.flatnonzero(values < 0)
    if len(bad):
        raise ConfigError(f"{path}, row {bad[0]}, column {name!r}: expected a number of at least 0")
    return values
