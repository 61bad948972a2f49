"""Checks what `combine` is given, and converts it into rows and columns in the order of a stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypedDict, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedsim.common.arguments import check
from fedsim.common.errors import ConfigError, closest
from fedsim.server.gram import Blocks
from fedsim.server.rule import Floats, Ints, State, Vectors

Rows = TypeVar("Rows", torch.Tensor, NDArray[Any])


class Given(TypedDict, total=False):
    """What may be said about the updates of `combine`; those before `blocks` are by row, `[n]`."""

    n_samples: ArrayLike | None
    """Training samples of the client; by default 1."""
    clients: ArrayLike | None
    """The clients' numbers; by default all different."""
    ages: ArrayLike | None
    """Steps since the row was received; at least 1 marks the remembered last update of a client. Default 0. Rules that
    need replaced rows take that of a client with a present row too."""
    local_steps: ArrayLike | None
    """Minibatches that the client trained on; by default unknown."""
    inclusion: ArrayLike | None
    """Probabilities with which the clients were chosen, above 0 and at most 1; NaN, the default, where unknown."""
    online: ArrayLike | None
    """Whether the client is online; by default those of present rows are."""
    staleness: ArrayLike | None
    """Server steps since the update's training began; by default 0."""
    participations: ArrayLike | None
    """Updates of the client so far, including this step's; by default those in the call."""
    losses_after: ArrayLike | None
    """Losses of the clients' own models after training, for rules that need them."""
    accuracies_after: ArrayLike | None
    """Accuracies of the same models, a fraction."""
    blocks: Sequence[int] | None
    """Sizes of the parameter blocks; by default one block."""
    state: State | None
    """`Combined.state` of the call before, for rules that remember."""
    vectors: Vectors | None
    """`Combined.vectors` of the call before."""
    step: int
    """Server steps taken before; by default 0."""
    n_clients: int | None
    """Clients in the population; by default those in the call."""
    total_samples: int | None
    """Their training samples; by default those of the clients in the call."""
    n_seen: int | None
    """Distinct clients with earlier updates; by default by `participations`."""


NAMES = tuple(Given.__annotations__)
"""The arguments of `combine` that `Given` describes."""


def check_names(given: Mapping[str, Any], options: Any) -> None:
    """Raise ConfigError for names that `Given` does not have, and for what should be a table."""
    for name in given:
        if name not in NAMES:
            raise ConfigError(
                f"argument {name!r}: there is none{closest(name, NAMES)}; a rule's options go into 'options'"
            )
    for name, value in (("options", options), *((name, given.get(name)) for name in ("state", "vectors"))):
        check(f"argument {name!r}", value, Mapping[str, Any] | None)


def wrapper_tables(wrap: Any) -> list[dict[str, Any]]:
    """Return the tables of wrappers that are pairs of a name and options."""
    if isinstance(wrap, (str, Mapping)) or not isinstance(wrap, Iterable):
        raise ConfigError(f"argument 'wrap': expected a list of (name, options), found {wrap!r}")
    tables = []
    for entry in wrap:
        name, options = entry if isinstance(entry, (tuple, list)) and len(entry) == 2 else (None, None)
        if not (isinstance(name, str) and isinstance(options, Mapping)):
            raise ConfigError(f"argument 'wrap': expected pairs such as ('clipped', {{}}), found {entry!r}")
        tables.append({**options, "name": name})
    return tables


def as_rows(updates: torch.Tensor | NDArray[Any]) -> torch.Tensor:
    """Return the updates [n, P] as a tensor of float32 or float64. Raises ConfigError."""
    if not isinstance(updates, (torch.Tensor, np.ndarray)):
        raise ConfigError(
            f"argument 'updates': expected a tensor or an array, found {type(updates).__name__}"
        )
    if isinstance(updates, torch.Tensor):
        _check_dense("updates", updates)
    rows = updates.detach() if isinstance(updates, torch.Tensor) else _tensor(updates)
    if rows.ndim != 2 or not rows.numel() or not rows.is_floating_point():
        kind = f"{rows.dtype} of shape {tuple(rows.shape)}"
        raise ConfigError(f"argument 'updates': expected floats [n, P] with n, P >= 1, found {kind}")
    bad = (~torch.isfinite(rows).all(dim=1)).nonzero().flatten().tolist()
    if bad:
        raise ConfigError(f"argument 'updates', row {bad[0]}: expected finite numbers, found NaN or infinity")
    return rows if rows.dtype == torch.float64 else rows.float()


def _check_dense(name: str, values: torch.Tensor) -> None:
    """Refuse tensors that do not store each of their numbers."""
    kind = "nested" if values.is_nested else "meta" if values.is_meta else str(values.layout)
    if kind != "torch.strided":
        raise ConfigError(f"argument {name!r}: expected a dense tensor with values, found a {kind} one")


def _check_unmasked(name: str, values: object) -> None:
    if isinstance(values, np.ma.MaskedArray):
        raise ConfigError(
            f"argument {name!r}: expected an array without a mask, found a masked one; .filled(0.0) replaces masked "
            "values"
        )


def _tensor(updates: NDArray[Any]) -> torch.Tensor:
    _check_unmasked("updates", updates)
    if updates.dtype.kind != "f" or updates.dtype.itemsize > 8:
        raise ConfigError(f"argument 'updates': expected floats of at most 64 bits, found {updates.dtype}")
    native = np.ascontiguousarray(updates, dtype=updates.dtype.newbyteorder("="))
    return torch.from_numpy(native if native.flags.writeable else native.copy())


def like(updates: Rows, vector: torch.Tensor) -> Rows:
    """Return a vector in the type and precision of the updates."""
    if isinstance(updates, torch.Tensor):
        return vector.to(updates.dtype)
    return vector.numpy().astype(updates.dtype, copy=False)


def block_spans(n_parameters: int, blocks: Sequence[int] | None) -> Blocks:
    """Return the first and last column of each parameter block, by default of a single one. Raises ConfigError."""
    if not isinstance(blocks, Iterable | None):
        raise ConfigError(f"argument 'blocks': expected a list of sizes, found {blocks!r}")
    sizes = [n_parameters] if blocks is None else list(blocks)
    whole = all(isinstance(size, (int, np.integer)) for size in sizes)
    if not whole or sum(sizes) != n_parameters or min(sizes) < 1:
        raise ConfigError(
            f"argument 'blocks': expected positive sizes of sum {n_parameters} (columns), found {sizes}"
        )
    return list(pairwise([0, *np.cumsum(sizes).tolist()]))


def _as_array(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return the values of an argument as an array."""
    _check_unmasked(name, values)
    try:
        if not isinstance(values, torch.Tensor):
            return np.asarray(values)
        _check_dense(name, values)
        on_host = values.detach().cpu()
        return np.asarray(on_host.double() if on_host.is_floating_point() else on_host)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"argument {name!r}: expected numbers, one per row, found {type(values).__name__}: {error}"
        ) from error


def _column(
    arguments: Mapping[str, Any], name: str, default: NDArray[Any], least: int | None = None
) -> NDArray[Any]:
    """Return an argument as an array like `default`; whole numbers of at least `least` where that is given."""
    if arguments[name] is None:
        return default
    array = _as_array(name, arguments[name])
    if array.shape != default.shape:
        raise ConfigError(
            f"argument {name!r}: expected {len(default)} values, one per row, found shape {array.shape}"
        )
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"argument {name!r}: expected numbers, found {array.dtype}")
    with np.errstate(invalid="ignore"):  # numbers that do not fit are refused below
        column = array.astype(default.dtype)
    wrong = ~np.isfinite(array) if least is None else (column != array) | (column < least)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        wanted = "a finite number" if least is None else f"a whole number of at least {least}"
        raise ConfigError(f"argument {name!r}, row {row}: expected {wanted}, found {array[row]}")
    return column


def columns_of(n: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a Stack, with defaults for those that are None."""
    zeros, ones, unknown = np.zeros(n, np.int64), np.ones(n, np.int64), np.full(n, np.nan)
    clients = _column(arguments, "clients", np.arange(n), least=0)
    ages = _column(arguments, "ages", zeros, least=0)
    after = [name for name in ("losses_after", "accuracies_after") if arguments[name] is not None]
    steps = arguments["local_steps"]
    return {
        "clients": clients,
        "ages": ages,
        "losses": _column(arguments, "losses", unknown),
        "n_samples": _column(arguments, "n_samples", ones, least=1),
        "staleness": _column(arguments, "staleness", zeros, least=0),
        "online": _column(arguments, "online", ages == 0),
        "participations": _column(arguments, "participations", _counts(clients), least=1),
        "inclusion": _inclusion(arguments, unknown),
        **({} if steps is None else {"local_steps": _column(arguments, "local_steps", ones, least=1)}),
        **{name: _column(arguments, name, unknown) for name in after},
    }


def _inclusion(arguments: Mapping[str, Any], unknown: Floats) -> Floats:
    """Return the inclusion probabilities [n]; NaN stands for an unknown one."""
    if arguments["inclusion"] is None:
        return unknown
    given = _as_array("inclusion", arguments["inclusion"])
    missing = np.isnan(given) if given.dtype.kind == "f" else np.zeros(given.shape, dtype=bool)
    column = _column({"inclusion": np.where(missing, 1.0, given)}, "inclusion", unknown)
    wrong = np.flatnonzero((column <= 0) | (column > 1))
    if len(wrong):
        raise ConfigError(
            f"argument 'inclusion', row {wrong[0]}: expected a probability above 0 and at most 1, or NaN, found "
            f"{column[wrong[0]]}"
        )
    return np.where(missing, np.nan, column)


def _counts(clients: Ints) -> Ints:
    _, inverse, counts = np.unique(clients, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse], dtype=np.int64)


def order_in_groups(clients: Ints, ages: Ints, *, replaced: bool) -> NDArray[np.intp]:
    """Return the order of present, remembered and replaced rows, else unchanged; refuse other second rows of a client.

    A remembered row of a client that is present too is refused, unless it may be `replaced`.
    """
    if ages.min() > 0:
        raise ConfigError("argument 'ages': expected at least one present row, of age 0, found none")
    kept = ages > 0
    beside = kept & np.isin(clients, clients[~kept])
    twice = (_counts(np.where(kept, clients, -1 - np.arange(len(clients)))) > 1) | (beside & (not replaced))
    if twice.any():
        raise ConfigError(
            f"argument 'ages': client {clients[twice][0]} has a remembered row beside another row; "
            "expected only its last update"
        )
    return np.argsort(kept * 1 + beside, kind="stable")


def scalars_of(arguments: Mapping[str, Any], table: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the step and the numbers of the whole population, by default those of the clients of the call."""
    clients, first = np.unique(table["clients"], return_index=True)
    present = table["clients"][table["ages"] == 0]
    now = [(present == client).sum() for client in clients]
    defaults: dict[str, Any] = {
        "n_clients": len(clients),
        "total_samples": int(table["n_samples"][first].sum()),
        "n_seen": int((table["participations"][first] > now).sum()),
        "step": None,
    }
    least = defaults | {"n_seen": 0, "step": 0}
    scalars = {n: default if arguments[n] is None else arguments[n] for n, default in defaults.items()}
    for name, value in scalars.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least[name]:
            raise ConfigError(
                f"argument {name!r}: expected a whole number of at least {least[name]}, found {value!r}"
            )
    return scalars
