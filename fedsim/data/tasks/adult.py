"""Adult, the census data of 1994 (Becker and Kohavi, UCI repository), as AFL and q-FFL use it: PhDs and all others."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import DataError, closest
from fedsim.data.dataset_files import existing, reading
from fedsim.data.federated_data import Task

COLUMNS: dict[str, tuple[int, str]] = {
    "workclass": (
        1,
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    ),
    "education": (
        3,
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
        "Doctorate 5th-6th Preschool",
    ),
    "marital-status": (
        5,
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
    ),
    "occupation": (
        6,
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    ),
    "relationship": (7, "Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "race": (8, "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": (9, "Female Male"),
    "native-country": (
        13,
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece "
        "South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
        "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
        "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
    ),
}
"""The columns with categories: place in a line, and values in the order of `adult.names`."""
FEATURES = [f"{name}={value}" for name, (_, values) in COLUMNS.items() for value in values.split()]
"""[99] The names of the features; a feature is 1 if its column has the value."""
PHD = FEATURES.index("education=Doctorate")
_FIELDS = 15
_LABELS = {"<=50K": 0, ">50K": 1}
_UNKNOWN = "?"


def adult(
    *, clients: int, seed: int, data_dir: Path | None, train_rows: Literal["own", "next"] = "own"
) -> Task:
    """48,842 people with 99 yes-or-no features, two clients: those with a doctorate, then everybody else.

    The label is 1 for an income of more than 50,000 dollars a year. The eight columns with categories become one-hot
    groups, an unknown value (`?`) zeros; columns of numbers are left out. `adult.test` is the official test set.
    `data_dir` is the folder that holds `adult/adult.data` and `adult/adult.test` (default: FEDSIM_DATA, else `./data`).
    Raises DataError that names a missing file, or the line of a damaged one.

    Args:
        train_rows: rows that the first client trains on. "own": the people with a doctorate. "next": the division in
            the published code of Fed-MGDA+ (Hu et al. 2022), which numbers rows from 1 and indexes them from 0: the row
            after each person with a doctorate, nearly a random part of the people; its tests are still those with a
            doctorate.
    """
    paths = existing("adult", data_dir, "adult/adult.data", "adult/adult.test")
    parts = [_read(path) for path in paths]
    x, y = (np.concatenate(of_both) for of_both in zip(*parts, strict=True))
    first = x[:, PHD] > 0
    if train_rows == "next":
        n_train = len(parts[0][1])
        first[:n_train] = np.roll(first[:n_train], 1)
    return Task(
        name="adult",
        x=x,
        y=y,
        n_classes=2,
        official_test=np.arange(len(y)) >= len(parts[0][1]),
        natural=(np.flatnonzero(first), np.flatnonzero(~first)),
    )


def _read(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return features [n, 99] and labels [n] of one file, without the comment that the test file begins with."""
    with reading(path), path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, skipinitialspace=True))
    numbered = [(i, row) for i, row in enumerate(rows, start=1) if row and not row[0].startswith("|")]
    for line, row in numbered:
        if len(row) != _FIELDS:
            raise DataError(f"{path}, line {line}: expected {_FIELDS} fields, found {len(row)}")
    lines = [line for line, _ in numbered]
    columns = list(zip(*(row for _, row in numbered), strict=True)) or [()] * _FIELDS
    x = np.zeros((len(lines), len(FEATURES)), dtype=np.float32)
    first = 0
    for name, (place, values) in COLUMNS.items():
        known = {value: first + i for i, value in enumerate(values.split())}
        hot = _numbers(path, name, lines, columns[place], known | {_UNKNOWN: -1})
        rows_known = np.flatnonzero(hot >= 0)
        x[rows_known, hot[rows_known]] = 1
        first += len(known)
    incomes = [value.removesuffix(".") for value in columns[-1]]
    return x, _numbers(path, "income", lines, incomes, _LABELS)


def _numbers(
    path: Path, name: str, lines: list[int], column: tuple[str, ...] | list[str], known: dict[str, int]
) -> NDArray[np.int64]:
    """Return [n] the number of each value of a column."""
    for line, value in zip(lines, column, strict=True):
        if value not in known:
            raise DataError(f"{path}, line {line}: unknown {name} {value!r}{closest(value, known)}")
    return np.array([known[value] for value in column], dtype=np.int64)
