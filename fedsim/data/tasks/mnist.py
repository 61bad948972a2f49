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
    """70,000 grey 28x28 images of handwritten digits in 10 classes, of which 10,000 are the official test set.

    `data_dir` is the folder that holds `MNIST/raw` (default: FEDSIM_DATA, else `./data`); downloaded if missing.

    Args:
        normalise: false leaves values from 0 to 1. true gives all pixels together mean 0 and standard deviation 1 over
            the training images, "pixel" each pixel by itself.
        classes: those to keep, which become 0, 1, ... in this order; None: all ten.
    """
    return load(_IMAGES, data_dir, normalise, classes)
