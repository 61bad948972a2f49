"""Landmine detection (Xue et al., 2007, "Multi-Task Learning for Classification with Dirichlet Process Priors")."""

from __future__ import annotations

from pathlib import Path

from fedsim.data.feature_tables import table
from fedsim.data.federated_data import Task


def landmine(*, clients: int, seed: int, data_dir: Path | None) -> Task:
    """14,820 radar pictures, 9 features each, of 29 minefields, which are the clients; label 1 is a mine (6 %).

    data_dir: the folder that holds `landmine/landmine.npz` with the arrays X, y and client (default: FEDSIM_DATA, else
    `./data`). Raises DataError that names a missing or damaged file.
    """
    return table("landmine", data_dir, "landmine/landmine.npz", features=9, labels=(0, 1))
