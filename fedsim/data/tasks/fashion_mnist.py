"""Fashion-MNIST (Xiao et al., 2017)."""

from __future__ import annotations

from pathlib import Path

from fedsim.data.federated_data import Task
from fedsim.data.torchvision_datasets import Classes, ImageSet, Normalise, load

_IMAGES = ImageSet("fashion_mnist", "FashionMNIST", mean=0.2860, std=0.3530)


def fashion_mnist(
    *,
    clients: int,
    seed: int,
    data_dir: Path | None,
    normalise: Normalise = False,
    classes: Classes | None = None,
) -> Task:
    """70,000 grey 28x28 images of clothing in 10 classes, of which 10,000 are the official test set.

    data_dir: the folder that holds `FashionMNIST/raw` (default: FEDSIM_DATA, else `./data`); downloaded if missing.
    normalise: give all pixels together, or with "pixel" each pixel, mean 0 and standard deviation 1 over the training
    images, instead of values from 0 to 1. classes: those to keep, which become 0, 1, ...; AFL, q-FFL and FedFV use
    [0, 2, 6]: T-shirt/top, pullover and shirt.
    """
    return load(_IMAGES, data_dir, normalise, classes)
