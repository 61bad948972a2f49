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

    `data_dir` is the folder that holds `FashionMNIST/raw` (default: FEDSIM_DATA, else `./data`); downloaded if missing.

    Args:
        normalise: false leaves values from 0 to 1. true gives all pixels together mean 0 and standard deviation 1 over
            the training images, "pixel" each pixel by itself.
        classes: those to keep, which become 0, 1, ... in this order; None: all ten. AFL, q-FFL and FedFV use [0, 2, 6]:
            T-shirt/top, pullover and shirt.
    """
    return load(_IMAGES, data_dir, normalise, classes)
