"""Datasets that Hugging Face's package saved to disk."""

from __future__ import annotations

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedsim
from fedsim import plugins
from fedsim.common.errors import ConfigError, DataError
from fedsim.data.tasks.hugging_face import pixels_of

installed = pytest.mark.skipif(
    find_spec("datasets") is None,
    reason="the package datasets is not installed: pip install '.[hf]'",
)
OWNERS = ["b", "a", "b", "c", "a", "b", "c", "c", "a"]
LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2]
NUMBERS = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)


def table(**columns: Any) -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"measured": NUMBERS, "kind": LABELS, "hospital": OWNERS} | columns)


def built(folder: Path, **options: Any) -> fedsim.Task:
    options = {"path": "saved", "features": "measured", "label": "kind"} | options
    return plugins.build("task", "hugging_face", options, clients=3, seed=0, data_dir=folder)


@installed
def test_numbers_labels_and_clients_are_those_of_the_columns(tmp_path: Path) -> None:
    table().save_to_disk(str(tmp_path / "saved"))
    task = built(tmp_path, client="hospital")
    np.testing.assert_array_equal(task.x, NUMBERS)
    assert task.y.tolist() == LABELS
    assert [rows.tolist() for rows in task.natural or ()] == [[1, 4, 8], [0, 2, 5], [3, 6, 7]]
    given = fedsim.Task.from_arrays(NUMBERS, np.array(LABELS), np.array(OWNERS))
    assert task.digest() == given.digest()
    assert built(tmp_path).natural is None


@installed
@pytest.mark.parametrize("channels", [1, 3])
def test_images_become_channels_from_0_to_1(tmp_path: Path, channels: int) -> None:
    from datasets import ClassLabel, Image
    from PIL import Image as Pillow

    pixels = np.random.default_rng(1).integers(0, 256, (9, 5, 6, channels)).astype(np.uint8)
    images = [Pillow.fromarray(each.squeeze()) for each in pixels]
    saved = (
        table(picture=images).cast_column("picture", Image()).cast_column("kind", ClassLabel(num_classes=7))
    )
    saved.save_to_disk(str(tmp_path / "saved"))
    task = built(tmp_path, features="picture")
    np.testing.assert_allclose(task.x, pixels.transpose(0, 3, 1, 2) / 255, rtol=1e-6)
    assert (task.x.dtype, task.n_classes) == (np.float32, 7)


@installed
def test_a_split_is_the_official_test_set_and_a_run_trains_on_the_other(tmp_path: Path) -> None:
    from datasets import DatasetDict

    splits = DatasetDict({"train": table(), "held_out": table()})
    splits.save_to_disk(str(tmp_path / "saved"))
    task = built(tmp_path, client="hospital", test="held_out")
    assert task.official_test.tolist() == [False] * 9 + [True] * 9
    assert built(tmp_path, split="held_out").y.tolist() == LABELS
    config = {
        "name": "hospitals",
        "task": {
            "name": "hugging_face",
            "clients": 3,
            "path": str(tmp_path / "saved"),
            "features": "measured",
            "label": "kind",
            "client": "hospital",
            "test": "held_out",
            "pool": "official",
            "fractions": [1.0, 0.0, 0.0],
        },
        "model": {"name": "softmax"},
        "pacing": {"preset": "sync", "clients": 2},
        "stop": {"steps": 2},
    }
    [result] = fedsim.simulate(config, out=tmp_path / "runs", workers=0)
    assert result.run.final().n.tolist() == [3, 3, 3]


@installed
def test_names_that_are_not_there_are_answered_with_the_closest(tmp_path: Path) -> None:
    from datasets import DatasetDict

    table(words=["x"] * 9).save_to_disk(str(tmp_path / "saved"))
    DatasetDict({"train": table()}).save_to_disk(str(tmp_path / "splits"))
    for options, said in (
        ({"features": "mesured"}, r"saved: features: no column 'mesured'; did you mean 'measured'"),
        ({"label": "kinds"}, r"label: no column 'kinds'; did you mean 'kind'"),
        ({"client": "hospitals"}, r"client: no column 'hospitals'; did you mean 'hospital'"),
        ({"label": "words"}, r"label: expected whole numbers in the column 'words', found Value.*string"),
        ({"features": "words"}, r"sample 0: features: expected numbers, found"),
        ({"client": "measured"}, r"client: expected 9 whole numbers or texts"),
        ({"test": "test"}, r"one dataset without splits, and so no 'test': leave out split and test"),
        ({"path": "splits", "test": "trian"}, r"splits: no split 'trian'; did you mean 'train'"),
        ({"path": "nowhere"}, r"path: no folder .*nowhere; dataset.save_to_disk"),
        ({"path": "."}, r"expected a dataset as save_to_disk writes it"),
    ):
        with pytest.raises(DataError, match=said):
            built(tmp_path, **options)


@pytest.mark.skipif(find_spec("datasets") is not None, reason="the package datasets is installed")
def test_the_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the package datasets is needed .*pip install '.\[hf\]'"):
        built(tmp_path)


@installed
def test_the_configuration_of_the_page_reads_such_a_dataset(tmp_path: Path, root: Path) -> None:
    from datasets import DatasetDict

    page = (root / "docs" / "own_data.md").read_text(encoding="utf-8")
    [text] = re.findall(r'```toml\n(\[task\]\nname = "hugging_face".*?)```', page, re.DOTALL)
    options = tomllib.loads(text)["task"]
    saved = {"image": NUMBERS, "character": LABELS, "writer_id": OWNERS}
    DatasetDict({"train": table(**saved)}).save_to_disk(str(tmp_path / options["path"]))
    del options["name"], options["clients"]
    task = plugins.build("task", "hugging_face", options, clients=3, seed=0, data_dir=tmp_path)
    assert len(task.natural) == 3


@pytest.mark.parametrize("mode", ["P", "PA", "CMYK"])
def test_colours_of_other_modes_are_those_of_the_image(mode: str) -> None:
    """A palette's places, which depend on the file, are no grey levels."""
    image = Image.fromarray(np.repeat(np.array([[[255, 0, 0]], [[0, 0, 255]]], np.uint8), 4, axis=1))
    converted = image.convert("P").convert(mode) if mode == "PA" else image.convert(mode)
    found, expected = pixels_of(converted), pixels_of(image)
    assert found.shape == expected.shape == (3, 2, 4)
    np.testing.assert_allclose(found, expected, atol=0.05)
