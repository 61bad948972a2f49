"""MNIST (LeCun et al., 1998)."""

from __future__ import annotations

from pathlib import Path

from fedsim.data.federated_data import Task
from fedsim.data.torchvision_datasets import Classes, ImageSet, Normalise, load

_IMAGES = ImageSet("mnist", "MNIST", mean=0.1307, std=0.3081)


def mnist(
    *,
    clients: int,
    seed: int,
    data_dir: Path | None,
    normalise: Normalise = False,
    classes: Classes | None = None,
) -> Task:
    """70,000 grey 28x28 images of handwritten digits in 10 classes, 10,000 of them the official test set.

    data_dir: the folder that holds `MNIST/raw` (default: FEDSIM_DATA, else `./data`); downloaded if absent.
    normalise: shift and scale the pixels by the mean and deviation of the training images instead of to 0..1, all
    alike, or with "pixel" each by its own. classes: those to keep, which become 0, 1, ....
    """
    return load(_IMAGES, data_dir, normalise, classes)
