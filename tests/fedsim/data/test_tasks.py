from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inputs
from fedsim import plugins
from fedsim.common.errors import ConfigError, DataError
from fedsim.data import dataset_files as _files
from fedsim.data.federated_data import Task
from fedsim.data.tasks import digits
from fedsim.data.tasks.synthetic import draw

ROOT = Path(__file__).resolve().parents[3]
IMAGE_TASKS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}


def build(name: str, clients: int = 10, seed: int = 0, data_dir: Path | None = None, **options: Any) -> Task:
    task: Task = plugins.build("task", name, options, clients=clients, seed=seed, data_dir=data_dir)
    return task


def assert_well_formed(task: Task) -> None:
    assert task.x.dtype == np.float32
    assert task.x.flags.c_contiguous
    assert np.isfinite(task.x).all()
    assert task.y.dtype == np.int64
    assert len(task.x) == len(task.y) == len(task.official_test)
    assert set(np.unique(task.y)) <= set(range(task.n_classes))
    assert task.model in plugins.names("model")


def test_digits_are_the_images_of_scikit_learn() -> None:
    task = build("digits")
    assert_well_formed(task)
    assert task.x.shape == (1797, 1, 8, 8)
    assert (task.x.min(), task.x.max()) == (0.0, 1.0)
    assert np.bincount(task.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert not task.official_test.any()
    assert task.natural is None


def test_digits_are_the_same_without_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = build("digits")
    monkeypatch.setattr("fedsim.data.tasks.digits.find_spec", lambda name: None)
    monkeypatch.setattr(digits, "_table", digits._table.__wrapped__)  # it is read once in a process
    fallback = build("digits")
    assert np.array_equal(fallback.x, expected.x)
    assert np.array_equal(fallback.y, expected.y)


# --- synthetic


@pytest.mark.parametrize("variant", ["noniid", "iid", "hybrid"])
@pytest.mark.parametrize("clients", [1, 7])
def test_synthetic_has_natural_clients(variant: str, clients: int) -> None:
    task = build("synthetic", clients=clients, variant=variant)
    assert_well_formed(task)
    assert task.x.shape[1:] == (60,)
    assert task.natural is not None
    assert len(task.natural) == clients
    np.testing.assert_array_equal(np.concatenate(task.natural), np.arange(len(task.y)))
    assert min(map(len, task.natural)) >= 50


def test_synthetic_options_reach_the_draw() -> None:
    assert len(build("synthetic", sizes="fixed", samples=12).y) == 120
    spread = [np.ptp([len(r) for r in build("synthetic", sigma=s).natural or ()]) for s in (0.0, 2.0)]
    assert spread[0] == 0 < spread[1]
    assert min(len(r) for r in build("synthetic", least=5, log_mean=0.0).natural or ()) < 10


def test_synthetic_alpha_and_beta_set_how_clients_differ() -> None:
    state = np.random.RandomState(0)
    devices = draw(state, np.full(2000, 1), alpha=0.5, beta=3.0, variant="iid")
    np.testing.assert_allclose(
        [devices.model_means.std(), devices.feature_means.std()], [0.5, 3.0], rtol=0.05
    )


@pytest.mark.parametrize("variant", ["noniid", "iid", "hybrid"])
def test_synthetic_features_are_labelled_before_they_are_rounded(variant: Any) -> None:
    counts = np.array([3, 0, 200, 1])
    exact, rounded = (
        draw(np.random.RandomState(2), counts, 1.0, 1.0, variant, dtype) for dtype in (np.float64, np.float32)
    )
    assert rounded.features.dtype == np.float32
    np.testing.assert_array_equal(rounded.features, exact.features.astype(np.float32))
    np.testing.assert_array_equal(rounded.labels, exact.labels)
    assert len(exact.features) == len(exact.labels) == counts.sum()


def test_synthetic_features_have_the_published_variances() -> None:
    """Var x_j = j^-1.2 around the client's centre, which is 0 in the IID variant."""
    x = build("synthetic", clients=4, variant="iid", sizes="fixed", samples=5000).x
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=0.04)
    np.testing.assert_allclose(x.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.06)


def test_iid_clients_share_one_labelling() -> None:
    """A least-squares fit on one client predicts another one of the same kind, and only of the same kind."""
    task = build("synthetic", clients=4, variant="hybrid", sizes="fixed", samples=3000)
    assert task.natural is not None
    first, second, _, last = task.natural
    fit = np.linalg.lstsq(task.x[first], np.eye(10)[task.y[first]], rcond=None)[0]

    def accuracy(rows: Any) -> float:
        return float(np.mean(np.argmax(task.x[rows] @ fit, axis=1) == task.y[rows]))

    assert accuracy(second) > 0.6
    assert accuracy(last) < accuracy(second) - 0.2


def test_synthetic_is_a_function_of_its_seed() -> None:
    np.random.seed(1)  # noqa: NPY002 (the global state must not matter, nor change)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    one, repeated, other = (build("synthetic", seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.x, repeated.x)
    assert one.x.shape != other.x.shape or not np.array_equal(one.x, other.x)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]  # noqa: NPY002


def test_synthetic_refuses_a_seed_outside_of_its_generators_range() -> None:
    with pytest.raises(ConfigError, match=r"needs a seed from 0 to 4294967295, found 4294967296"):
        build("synthetic", seed=2**32)


@pytest.mark.parametrize("options", [{"sigma": 30.0}, {"log_mean": 900.0}])
def test_synthetic_refuses_clients_that_no_machine_holds(options: dict[str, float]) -> None:
    with pytest.raises(
        ConfigError, match=r"expected a smaller log_mean or sigma than .* a client of .* samples"
    ):
        build("synthetic", **options)


# --- MNIST and Fashion-MNIST


def write_idx(path: Path, values: np.ndarray[Any, Any]) -> None:
    head = np.array([0x800 + values.ndim, *values.shape], dtype=">u4").tobytes()
    path.write_bytes(head + values.astype(np.uint8).tobytes())


@pytest.fixture
def small_mnist(tmp_path: Path) -> Path:
    """Write a well-formed folder of 5 training and 3 test images; pixel (0, 0) tells the image's number."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, numbers in {"train": range(5), "t10k": range(5, 8)}.items():
        images = np.zeros((len(numbers), 28, 28))
        images[:, 0, 0] = numbers
        images[:, 1, 1] = 255
        write_idx(raw / f"{part}-images-idx3-ubyte", images)
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.array(numbers))
    return raw


def test_images_are_read_in_order_training_first(small_mnist: Path) -> None:
    task = build("mnist", data_dir=small_mnist.parents[1])
    assert_well_formed(task)
    assert task.x.shape == (8, 1, 28, 28)
    np.testing.assert_allclose(task.x[:, 0, 0, 0] * 255, np.arange(8), atol=1e-5)
    assert (task.x[:, 0, 1, 1] == 1.0).all()
    assert task.y.tolist() == list(range(8))
    assert task.official_test.tolist() == [False] * 5 + [True] * 3


def test_normalise_shifts_and_scales(small_mnist: Path) -> None:
    plain, scaled = (build("mnist", data_dir=small_mnist.parents[1], normalise=n) for n in (False, True))
    np.testing.assert_allclose(scaled.x, (plain.x - 0.1307) / 0.3081, rtol=1e-5)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _swap_header(path: Path) -> None:
    path.write_bytes(b"\x1f\x8b\x08\x00" + path.read_bytes()[4:])


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("train-images-idx3-ubyte", _cut, r"expected 3936 bytes for \[5, 28, 28\], found 3935"),
        ("t10k-labels-idx1-ubyte", _cut, r"expected 11 bytes for \[3\], found 10"),
        ("train-labels-idx1-ubyte", _empty, "found another header"),
        ("t10k-images-idx3-ubyte", _swap_header, "found another header"),
        ("t10k-labels-idx1-ubyte", lambda p: write_idx(p, np.arange(4)), r"expected images \[4, 28, 28\]"),
        ("t10k-labels-idx1-ubyte", lambda p: write_idx(p, np.array([1, 2, 11])), "labels 0 to 9, found 11"),
    ],
)
def test_a_damaged_file_is_named(
    small_mnist: Path, name: str, damage: Callable[[Path], None], message: str
) -> None:
    damage(small_mnist / name)
    with pytest.raises(DataError, match=message) as caught:
        build("mnist", data_dir=small_mnist.parents[1])
    assert str(small_mnist / name.partition("-")[0]) in str(caught.value)


def test_a_missing_file_that_cannot_be_downloaded_is_explained(
    small_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.datasets import MNIST

    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:9/"])
    monkeypatch.setenv("FEDSIM_DATA", str(small_mnist.parents[1]))
    (small_mnist / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError) as caught:
        build("mnist", data_dir=small_mnist.parents[1])
    message = str(caught.value)
    assert f"no train-labels-idx1-ubyte in {small_mnist}, and downloading failed" in message
    assert "FEDSIM_DATA" in message
    assert "task.data_dir" in message


def test_the_folder_comes_from_the_argument_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_DATA", "/somewhere")
    assert _files.folder(Path("/given")) == Path("/given")
    assert _files.folder(None) == Path("/somewhere")
    monkeypatch.delenv("FEDSIM_DATA")
    assert _files.folder(None) == Path("data")


@pytest.mark.parametrize("name", IMAGE_TASKS)
def test_the_real_images(name: str) -> None:
    task = build(name, data_dir=inputs.data_of(name), normalise=True)
    assert_well_formed(task)
    assert task.x.shape == (70_000, 1, 28, 28)
    assert task.official_test.sum() == 10_000
    assert not task.official_test[:60_000].any()
    train = task.x[:60_000]
    np.testing.assert_allclose([train.mean(dtype=np.float64), train.std(dtype=np.float64)], [0, 1], atol=1e-3)
    expected = {
        "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        "fashion_mnist": [6000] * 10,
    }
    assert np.bincount(task.y[:60_000]).tolist() == expected[name]


def test_reading_existing_files_imports_neither_torch_nor_torchvision(small_mnist: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fedsim.data.tasks.mnist import mnist;"
        f"mnist(clients=1, seed=0, data_dir=Path({str(small_mnist.parents[1])!r}));"
        "print([m for m in ('torch', 'torchvision') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


# --- some classes, each pixel by itself


def test_classes_can_be_chosen_and_are_numbered_as_named(small_mnist: Path) -> None:
    task = build("mnist", data_dir=small_mnist.parents[1], classes=[6, 0, 3])
    assert_well_formed(task)
    np.testing.assert_allclose(task.x[:, 0, 0, 0] * 255, [0, 3, 6], atol=1e-5)
    assert task.y.tolist() == [1, 2, 0]
    assert task.n_classes == 3
    assert task.official_test.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([0, 10], r"option 'classes.1'.*less than or equal to 9, found 10"),
        ([3], "option 'classes'.*at least 2 items"),
        ([3, 4, 3], r"classes: expected different ones, found \[3, 4, 3\]"),
    ],
)
def test_wrong_classes_are_explained(small_mnist: Path, classes: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("mnist", data_dir=small_mnist.parents[1], classes=classes)


def test_each_pixel_can_be_normalised_by_itself(small_mnist: Path) -> None:
    """As AFL and q-FFL do: (grey level - mean) / (deviation + 0.001), over the training images."""
    x = build("mnist", data_dir=small_mnist.parents[1], normalise="pixel", classes=[0, 4, 7]).x
    np.testing.assert_allclose(
        x[:, 0, 0, 0], (np.array([0, 4, 7]) - 2) / (np.std(np.arange(5)) + 0.001), rtol=1e-5
    )
    assert (x[:, 0, 1, 1] == 0).all()  # white in all training images: no deviation


def test_the_three_clothes_of_the_papers() -> None:
    folder = inputs.data_of("fashion_mnist")
    task = build("fashion_mnist", data_dir=folder, normalise="pixel", classes=[0, 2, 6])
    assert_well_formed(task)
    assert np.bincount(task.y[~task.official_test]).tolist() == [6000] * 3
    assert np.bincount(task.y[task.official_test]).tolist() == [1000] * 3
    whole = build("fashion_mnist", data_dir=folder, normalise="pixel").x[:60_000]
    np.testing.assert_allclose(whole.mean(axis=0, dtype=np.float64), 0, atol=1e-3)
    assert whole.std(axis=0, dtype=np.float64).max() <= 1 + 1e-4
