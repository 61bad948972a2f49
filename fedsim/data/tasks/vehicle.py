"""Vehicle classification in sensor networks (Duarte and Hu, 2004): which of two vehicles passes a sensor."""

from __future__ import annotations

from pathlib import Path

from fedsim.data.feature_tables import table
from fedsim.data.federated_data import Task


def vehicle(*, clients: int, seed: int, data_dir: Path | None) -> Task:
    """1,860 records of 100 acoustic and seismic features from 23 sensors, which are the clients: a part of the data.

    Ditto published this random part of the data set; q-FFL uses all of it. Labels -1 and +1 become 0 and 1.
    data_dir: the folder that holds `vehicle/vehicle_train_subset.npz` with the arrays X, y and client (default:
    FEDSIM_DATA, else `./data`). Raises DataError that names a missing or damaged file.
    """
    return table("vehicle", data_dir, "vehicle/vehicle_train_subset.npz", features=100, labels=(-1, 1))
