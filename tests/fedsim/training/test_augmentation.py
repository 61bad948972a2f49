"""Random crops and mirror images: against slicing, their shares, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedsim.common.errors import ConfigError
from fedsim.config.load import parse
from fedsim.runs.build import prepare
from fedsim.training.augmentation import Augment, Augmenter
from fedsim.training.job import Cohort, Job
from fedsim.training.settings import LocalSGD, WorkbenchSpec
from fedsim.training.workbench import Workbench
from noise import noise

CPU = torch.device("cpu")
HOWS = [Augment(2, True), Augment(3, False), Augment(0, True)]


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_a_view_is_a_window_of_the_padded_image(how: Augment) -> None:
    x = torch.randn(how.views, 3, 5, 7, generator=torch.Generator().manual_seed(1))
    seen = Augmenter(how, (3, 5, 7), CPU)(x, torch.arange(how.views))
    padded = functional.pad(x, [how.crop] * 4)
    side, sides = 2 * how.crop + 1, 1 + how.flip
    for view in range(how.views):
        down, right = divmod(view // sides, side)
        window = padded[view, :, down : down + 5, right : right + 7]
        expected = window.flip(-1) if view % sides else window
        torch.testing.assert_close(seen[view], expected, rtol=0, atol=0)


def test_flat_images_stay_flat() -> None:
    how = Augment(1, True)
    x, views = torch.randn(9, 2, 4, 4, generator=torch.Generator().manual_seed(2)), torch.arange(9)
    see = Augmenter(how, (2, 4, 4), CPU)
    assert torch.equal(see(x.flatten(1), views), see(x, views).flatten(1))


def test_views_are_equally_likely_and_belong_to_the_job() -> None:
    how, n = Augment(1, True), 18_000
    ids = np.zeros(n, dtype=np.int64)
    views = how.drawn(1, "batches", ids, ids, ids, np.arange(n))
    counts = np.bincount(views, minlength=how.views)
    assert len(counts) == how.views == 18
    assert np.abs(counts - 1000).max() < 150
    some = np.arange(5, n, 7)
    assert (how.drawn(1, "batches", ids[some], ids[some], ids[some], some) == views[some]).all()
    for other in (
        how.drawn(2, "batches", ids, ids, ids, np.arange(n)),
        how.drawn(1, "own", ids, ids, ids, np.arange(n)),
        how.drawn(1, "batches", ids + 1, ids, ids, np.arange(n)),
        how.drawn(1, "batches", ids, ids + 1, ids, np.arange(n)),
        how.drawn(1, "batches", ids, ids, ids + 1, np.arange(n)),
    ):
        assert 0.02 < (other == views).mean() < 0.1


def test_clients_see_the_same_views_one_by_one_and_side_by_side() -> None:
    """Also where one has done its steps before the others, and in each of two epochs."""
    data, rows = noise(3, (4, 12), 4, 2), {}
    for mode in ("loop", "vmap", "dense", "plain"):
        how = None if mode == "plain" else Augment(2, True)
        sgd = LocalSGD(batch_size=4, epochs=2, augment=how)
        spec = WorkbenchSpec("mlp", {"hidden": [8]}, (1, 4, 4), 2, sgd, seed=1, losses=False)
        made = Workbench(replace(spec, mode="loop" if mode == "plain" else mode), data)  # type: ignore[arg-type]
        start, rows[mode] = made.network.initial(0), torch.empty(3, made.network.P)
        made.train(Cohort.of([Job(k, k, 1, 0) for k in range(3)]), [start] * 3, rows[mode])
    assert (rows["plain"] - rows["loop"]).abs().max() > 1e-2
    for mode in ("vmap", "dense"):
        torch.testing.assert_close(rows[mode], rows["loop"], rtol=1e-4, atol=1e-6)


def raw(task: str, **augment: object) -> dict[str, object]:
    divided = {"partition": {"name": "iid"}} if task == "digits" else {}
    return {
        **divided,
        "task": {"name": task, "clients": 4},
        "pacing": {"preset": "sync", "clients": 2},
        "train": {"augment": augment},
        "stop": {"steps": 1},
    }


@pytest.mark.parametrize(
    ("task", "augment", "message"),
    [
        ("synthetic", {"flip": True}, r"train.augment: expected images, .*found samples of shape \[60\]"),
        ("digits", {"crop": 8}, r"train.augment.crop: expected less than the 8 pixels .*found 8"),
        ("digits", {"crop": -1}, r"train.augment.crop: .*greater than or equal to 0"),
        ("digits", {"crops": 1}, r"train.augment.crops: .*'crop'"),
    ],
)
def test_what_cannot_be_is_refused(task: str, augment: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(parse(raw(task, **augment), "test", "run")[0])


def test_it_is_off_unless_it_changes_something() -> None:
    config = parse(raw("synthetic", crop=0, flip=False), "test", "run")[0]
    assert prepare(config).bench.sgd.augment is None
    written = parse(raw("digits", crop=1), "test", "run")[0]
    assert written.resolved()["train"]["augment"] == {"crop": 1, "flip": False}
