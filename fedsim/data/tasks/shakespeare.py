"""Shakespeare's plays, character by character: each speaking role is a client, as in LEAF (Caldas et al., 2018)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import DataError
from fedsim.common.rng import rng
from fedsim.data.dataset_files import existing, reading
from fedsim.data.federated_data import Indices, Task

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""[80] The characters of LEAF, which are the classes; any other counts as the last one."""
FILE = "shakespeare/input.txt"
_NUMBERS = {character: number for number, character in enumerate(ALPHABET)}

Count = Annotated[int, Field(ge=1)]


def shakespeare(
    *,
    clients: int,
    seed: int,
    data_dir: Path | None,
    length: Count = 80,
    least: Count = 1000,
    stride: Count = 1,
) -> Task:
    """Predict the next character of a role's speeches from the `length` before: 80 classes, one client for each role.

    x is float32 [N, length], numbers of characters in `ALPHABET`. A role's speeches are joined. `clients` of the roles
    are drawn with the run's seed, and keep the order in which they first speak. `data_dir` is the folder that holds
    `shakespeare/input.txt`, where blocks of text are separated by empty lines and begin with `ROLE:` (default:
    FEDSIM_DATA, else `./data`). Raises DataError if the file is missing or damaged, or has too few roles.

    Args:
        length: number of characters that a prediction sees; each character of a role but the first so many is a sample.
        least: fewest characters of a role that can be a client; `length` + 1 if that is more.
        stride: 20 uses every 20th of a role's samples, 1 uses all.
    """
    texts = speeches(existing("shakespeare", data_dir, FILE)[0])
    least = max(least, length + 1)
    roles = [role for role, text in texts.items() if len(text) >= least]
    if len(roles) < clients:
        raise DataError(
            f"task 'shakespeare' has {len(roles)} roles with at least {least} characters, not "
            f"{clients}: use fewer clients or a smaller least"
        )
    chosen = np.sort(rng(seed, "roles").choice(len(roles), clients, replace=False)).tolist()
    x, y, ends = _samples([_numbers(texts[roles[i]]) for i in chosen], length, stride)
    return Task(
        name="shakespeare",
        x=x,
        y=y,
        n_classes=len(ALPHABET),
        official_test=np.zeros(len(y), dtype=np.bool_),
        natural=tuple(np.split(np.arange(len(y)), ends[:-1])),
        model="lstm",
        names=tuple(roles[i] for i in chosen),
    )


def _samples(texts: list[Indices], length: int, stride: int) -> tuple[NDArray[np.float32], Indices, Indices]:
    """Return x [N, length], y [N] and, for each text, the number of samples up to its end."""
    counts = np.array([-(-(len(text) - length) // stride) for text in texts])
    ends = np.cumsum(counts)
    x, y = np.empty((ends[-1], length), dtype=np.float32), np.empty(ends[-1], dtype=np.int64)
    # Role by role, because all windows at once would take much more memory.
    for text, end, count in zip(texts, ends.tolist(), counts.tolist(), strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(text, length + 1)[::stride]
        x[end - count : end], y[end - count : end] = windows[:, :-1], windows[:, -1]
    return x, y, ends


def speeches(path: Path) -> dict[str, str]:
    """Return the speeches of each role, joined by line ends, roles in the order in which they first speak."""
    with reading(path):
        text = path.read_text(encoding="utf-8")
    by_role: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        role, colon, speech = block.strip("\n").partition(":\n")
        if colon and "\n" not in role:
            by_role.setdefault(role, []).append(speech)
    if not by_role:
        raise DataError(f"{path}: expected blocks of text that begin with a line such as 'ROLE:', found none")
    return {role: "\n".join(parts) for role, parts in by_role.items()}


def _numbers(text: str) -> Indices:
    return np.array([_NUMBERS.get(character, len(ALPHABET) - 1) for character in text], dtype=np.int64)
