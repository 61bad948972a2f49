"""Each paper's setting runs, has the sizes that the paper gives, and says where it is another one."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inputs
from fedsim import analysis
from fedsim.common.files import from_toml
from fedsim.config.data import federation
from fedsim.config.load import load_config
from fedsim.config.run import RunConfig
from fedsim.runs.simulate import simulate
from fedsim.training.network import build_network

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "examples" / "papers").glob("*.toml"))
_NARROW = ("model.channels=[4,4]", "model.hidden=[8,8]")
SMALLER = {
    "fedfv_cifar": ("model.hidden=[8]",),
    "fedfv_mnist": ("model.channels=[4,4]", "model.hidden=[8]"),
    "fedlf_ablation": ("partition.min_samples=2", *_NARROW),
    "fedlf_cifar": ("partition.min_samples=2", *_NARROW),
    "fedlf_fashion": ("partition.min_samples=2",),
    "fedmgda_adult": ("train.batch_size=1000",),
    "fedmgda_cifar": _NARROW,
    "qffl_shakespeare": ("task.stride=100", "model.hidden=[8,8]"),
}
"""What keeps a test short, and what is possible with a tenth of the images."""
# configuration: clients, samples for training and for testing of the smallest and the largest client, parameters
SIZES = {
    "fedfv_fashion": (3, (5600, 5600), (700, 700), 2_355),
    "fedfv_mnist": (200, (240, 240), (30, 30), 608_702 - 52 * 513),
    "fedmdfg_fashion": (5, (6000, 18_000), (1000, 3000), 199_210),
    "fedmgda_adult": (2, (476, 38_598), (59, 4825), 200),
    "fedmgda_fashion": (100, (480, 480), (60, 60), 21_840),
    "qffl_adult": (2, (413, 32_148), (181, 16_100), 200),
    "qffl_fashion": (3, (6000, 6000), (1000, 1000), 2_355),
    "qffl_vehicle": (23, (6, 427), (1, 107), 202),
}


def data_of(path: Path) -> Path:
    """Return the folder with the data of a configuration, or skip."""
    return inputs.data_of(load_config(path)[0].task.name)


@pytest.fixture(scope="session")
def few_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tenth of the images of each set that is there, of CIFAR-10 a twentieth: all of them would take minutes."""
    whole, folder = inputs.DATA, tmp_path_factory.mktemp("images")
    cifar10 = whole / inputs.FILES["cifar10"][0]
    if cifar10.is_file():  # the rows run through the classes in turn
        table = pq.read_table(cifar10)
        pq.write_table(
            pa.concat_tables([table.slice(0, 2500), table.slice(50_000, 500)]), folder / cifar10.name
        )
    for path in [p for name in ("FashionMNIST", "MNIST") for p in (whole / name / "raw").glob("*-ubyte")]:
        kept = folder / path.relative_to(whole)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(_tenth(path))
    return folder


def _tenth(path: Path) -> bytes:
    """Cut an idx file: magic number with the number of dimensions in its last byte, lengths, then the values."""
    content = path.read_bytes()
    start = 4 * (1 + content[3])
    length, rest = struct.unpack(">i", content[4:8])[0], content[8:start]
    return (
        content[:4]
        + struct.pack(">i", length // 10)
        + rest
        + content[start : start + (len(content) - start) // 10]
    )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_the_setting_of_a_paper_runs(path: Path, tmp_path: Path, few_images: Path) -> None:
    folder = data_of(path)
    if load_config(path)[0].task.name in ("cifar10", "fashion_mnist", "mnist"):
        folder = few_images
    sets = ("stop.steps=1", f"task.data_dir='{folder}'", *SMALLER.get(path.stem, ()))
    results = simulate(load_config(path, sets), out=tmp_path, workers=0)
    runs = [analysis.open_run(result.folder) for result in results]
    assert [run.label for run in runs] == [config.label for config in load_config(path)]
    for run in runs:
        assert run.manifest["steps"] == 1
        assert np.isfinite(run.final().loss).all()


@pytest.mark.parametrize("name", SIZES)
def test_clients_and_models_have_the_sizes_of_the_paper(name: str) -> None:
    path = ROOT / "examples" / "papers" / f"{name}.toml"
    data_of(path)
    config: RunConfig = load_config(path)[0]
    clients, train, test, parameters = SIZES[name]
    task, data = federation(config)
    assert data.n_clients == clients
    assert (data.train.sizes.min(), data.train.sizes.max()) == train
    assert (data.test.sizes.min(), data.test.sizes.max()) == test
    model, options = (config.model.name, config.model.options) if config.model else (task.model, {})
    assert parameters == build_network(model, options, data.x.shape[1:], data.n_classes).P


# What the captions of the tables say, and the common settings above them.
CAPTIONS: dict[str, dict[str, Any]] = {
    "fedfv_cifar": {
        "task.clients": 100, "pacing.clients": 10, "partition.shards_per_client": 2, "train.batch_size": "full",
        "train.lr": 0.1, "train.epochs": 1, "stop.steps": 2000,
    },
    "fedfv_fashion": {
        "task.clients": 3, "pacing.clients": 3, "model.name": "mlp", "train.batch_size": "full", "train.lr": 0.1,
        "train.epochs": 1, "stop.steps": 200,
    },
    "fedmgda_adult": {
        "task.clients": 2, "pacing.clients": 2, "task.pool": "official", "train.batch_size": 10, "train.lr": 0.01,
        "train.epochs": 1, "stop.steps": 500,
    },
    "fedlf_ablation": {
        "task.clients": 100, "pacing.clients": 10, "partition.name": "pathological", "train.batch_size": 200,
        "train.epochs": 1, "train.lr_decay": 0.999,
    },
}  # fmt: skip
_CLAIM = re.compile(r"([a-z_]+\.[a-z_]+) = ([^\s,()]+)(?: \((\S+)\))?")
RULES = {
    "FedAvg": "fedavg", "AFL": "afl", "q-FFL": "qfedavg", "q =": "qfed", "FedMGDA+": "fedmgda_plus", "TERM": "term",
    "FedMGDA": "fedmgda", "FedAvg-n": "fedavg_n", "FedFV": "fedfv", "FedMDFG": "fedmdfg", "FedLF": "fedlf",
}  # fmt: skip
"""What the manual calls rules."""


def _head(path: Path) -> str:
    lines = path.read_text().splitlines()
    return " ".join(
        line.lstrip("# ") for line in lines[: next(i for i, s in enumerate(lines) if s[:1] != "#")]
    )


def _said(path: Path) -> tuple[dict[str, Any], dict[str, tuple[Any, Any]]]:
    """Return what a file's comment says is as in the table, and what is not: the file's value and the table's."""
    _, _, claims = _head(path).partition("As ")
    same, _, other = claims.partition("Not as there: ")
    equal = {key: from_toml(f"v = {value}")["v"] for key, value, _ in _CLAIM.findall(same)}
    different = {
        key: (from_toml(f"v = {value}")["v"], int(theirs) if theirs.isdecimal() else theirs)
        for key, value, theirs in _CLAIM.findall(other)
        if theirs
    }
    return equal, different


def _settings(path: Path, keys: Iterable[str]) -> dict[str, Any]:
    """Return what the file's runs have, the same in all arms."""
    arms = [config.resolved() for config in load_config(path)]
    found = {}
    for key in keys:
        table, _, name = key.partition(".")
        values = {repr(arm[table][name]): arm[table][name] for arm in arms}
        assert len(values) == 1, f"{path.name}: {key} differs from arm to arm"
        found[key] = values.popitem()[1]
    return found


@pytest.mark.parametrize("name", CAPTIONS)
def test_a_file_says_what_it_has_in_common_with_the_table_and_what_not(name: str) -> None:
    path, caption = ROOT / "examples" / "papers" / f"{name}.toml", CAPTIONS[name]
    settings, (equal, different) = _settings(path, caption), _said(path)
    assert equal == {key: value for key, value in caption.items() if settings[key] == value}
    assert different == {
        key: (settings[key], caption[key]) for key in caption if settings[key] != caption[key]
    }
    assert "Given:" not in _head(path)


def test_the_manual_names_the_files_that_differ_from_their_tables() -> None:
    told = (
        (ROOT / "docs" / "papers.md")
        .read_text()
        .partition("Four are known to differ")[2]
        .partition("\n\n")[0]
    )
    differ = {path.stem for path in CONFIGS if _said(path)[1]}
    assert set(re.findall(r"`(\w+)`", told)) == differ == set(CAPTIONS)


def test_the_manual_names_the_rules_of_each_file() -> None:
    rows = re.findall(r"`examples/papers/(\w+)\.toml` \| (.+) \|", (ROOT / "docs" / "papers.md").read_text())
    before = ""
    for name, arms in rows:
        before = before if arms == "the same" else arms
        words = before.replace("MGDA-Prox", "").replace("FedProx", "")
        whole = {word: rf"(?<![\w-]){re.escape(word)}(?![\w+-])" for word in RULES}
        named = {plugin for word, plugin in RULES.items() if re.search(whole[word], words)}
        run = {config.algorithm.name for config in load_config(ROOT / "examples" / "papers" / f"{name}.toml")}
        if "qfed" in named:  # q = 0 is the average
            assert any(rule.startswith("qfed") for rule in run), name
            run -= {"qfedavg", "qfedsgd", "fedavg", "fedsgd"}
        assert run == named - {"qfed"}, name


def test_every_setting_is_in_the_table_of_the_manual() -> None:
    manual = (ROOT / "docs" / "papers.md").read_text()
    assert set(re.findall(r"examples/papers/(\w+)\.toml", manual)) == {path.stem for path in CONFIGS}
