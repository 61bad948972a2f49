"""A Hugging Face dataset on disk, as `datasets.Dataset.save_to_disk` and `DatasetDict.save_to_disk` write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import DataError, closest
from fedsim.common.extras import require
from fedsim.data.dataset_files import folder
from fedsim.data.federated_data import Task

_WHOLE = ("bool", "int", "uint")


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceOptions:
    """Options of `hugging_face`."""

    path: str
    """The folder, below the folder of data sets unless it is absolute."""
    features: str = "image"
    """The column of images, which become float32 [channels, height, width] from 0 to 1, or of numbers."""
    label: str = "label"
    """The column of whole numbers from 0."""
    client: str | None = None
    """The column of the clients' numbers or names; without it a `[partition]` divides the samples."""
    split: str | None = None
    """The split that trains; by default `train`, where the folder has splits."""
    test: str | None = None
    """The split of the official test set."""


def hugging_face(options: HuggingFaceOptions, *, clients: int, seed: int, data_dir: Path | None) -> Task:
    """A folder written by `save_to_disk` of Hugging Face's datasets; a column may say whose each sample is.

    Raises ConfigError if the package datasets is missing, DataError for a missing folder, split or column, with the
    closest name, and for samples of another kind.
    """
    place = folder(data_dir) / Path(options.path).expanduser()
    loaded = _loaded(place)
    train = _Rows.of(
        _split(loaded, options.split or "train", options.split is not None, place), options, place
    )
    tested = None if options.test is None else _split(loaded, options.test, True, place)
    rows = None if tested is None else _Rows.of(tested, options, place)
    task = Task.from_dataset(train, client=options.client, test=rows, x=options.features, y=options.label)
    n_classes = max(task.n_classes, getattr(train.dataset.features[options.label], "num_classes", 0))
    return replace(task, name="hugging_face", n_classes=n_classes)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A dataset whose samples have the wanted columns alone, images as numbers."""

    dataset: Any
    images: str | None
    """The column of images, if the features are."""

    @staticmethod
    def of(dataset: Any, options: HuggingFaceOptions, place: Path) -> _Rows:
        """Raises DataError for a column that is missing, or whose labels are no whole numbers."""
        features, label, client = options.features, options.label, options.client
        columns = (features, label) if client is None else (features, label, client)
        known = dataset.column_names
        for option, column in zip(("features", "label", "client"), columns, strict=False):
            if column not in known:
                raise DataError(f"{place}: {option}: no column {column!r}{closest(column, known)}")
        kind = dataset.features[label]
        if not hasattr(kind, "num_classes") and not str(getattr(kind, "dtype", "")).startswith(_WHOLE):
            raise DataError(
                f"{place}: label: expected whole numbers in the column {label!r}, found {kind}; "
                f"dataset.class_encode_column({label!r}) numbers texts"
            )
        images = features if type(dataset.features[features]).__name__ == "Image" else None
        return _Rows(dataset.select_columns(list(columns)).with_format(None), images)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> dict[str, Any]:
        row = dict(self.dataset[number])
        if self.images is not None:
            row[self.images] = pixels_of(row[self.images])
        return row


def _loaded(place: Path) -> Any:
    """Return the dataset, or the mapping of splits, in a folder."""
    datasets = require("hf", "datasets")
    if not place.is_dir():
        raise DataError(f"task 'hugging_face': path: no folder {place}; dataset.save_to_disk(...) writes one")
    try:
        return datasets.load_from_disk(str(place))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{place}: expected a dataset as save_to_disk writes it, which cannot be read: {error}"
        ) from error


def _split(loaded: Any, name: str, named: bool, place: Path) -> Any:
    """Return a split, or the whole of a dataset without splits, of which none may be named."""
    if not isinstance(loaded, Mapping):
        if named:
            raise DataError(
                f"{place}: found one dataset without splits, and so no {name!r}: leave out split and test"
            )
        return loaded
    if name not in loaded:
        raise DataError(f"{place}: no split {name!r}{closest(name, loaded)}")
    return loaded[name]


def pixels_of(image: Any) -> NDArray[np.float32]:
    """Return an image as float32 [channels, height, width]; grey levels and colours of 8 bits go from 0 to 1."""
    if getattr(image, "mode", "") in ("P", "PA", "CMYK"):  # places in a palette are no grey levels
        image = image.convert("RGB")
    pixels = np.asarray(image)
    shaped = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    whole = shaped.astype(np.float32)
    return whole / np.float32(255) if pixels.dtype == np.uint8 else whole
