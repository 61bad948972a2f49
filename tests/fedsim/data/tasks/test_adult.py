from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import inputs
from fedsim import plugins
from fedsim.common.errors import DataError
from fedsim.data.federated_data import Task
from fedsim.data.split import Division, federate
from fedsim.data.tasks.adult import COLUMNS, FEATURES, PHD
from small_data import write_adult


def build(data_dir: Path, **options: str) -> Task:
    task: Task = plugins.build("task", "adult", options, clients=2, seed=0, data_dir=data_dir)
    return task


@pytest.fixture(scope="module")
def real() -> Task:
    return build(inputs.data_of("adult"))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write_adult(tmp_path / "adult")
    return tmp_path


def test_features_are_one_hot_groups_in_the_order_of_the_published_description() -> None:
    sizes = [len(values.split()) for _, values in COLUMNS.values()]
    assert sizes == [8, 16, 7, 14, 6, 5, 2, 41]
    assert len(FEATURES) == len(set(FEATURES)) == 99
    assert (PHD, FEATURES[21]) == (21, "education=Doctorate")


def test_people_become_rows(small: Path) -> None:
    task = build(small)
    assert (task.x.shape, task.x.dtype, task.y.dtype) == ((5, 99), np.float32, np.int64)
    assert task.y.tolist() == [0, 1, 1, 0, 1]
    assert task.official_test.tolist() == [False] * 3 + [True] * 2
    assert [FEATURES[i] for i in np.flatnonzero(task.x[1])] == [
        "workclass=State-gov",
        "education=Doctorate",
        "marital-status=Never-married",
        "occupation=Adm-clerical",
        "relationship=Not-in-family",
        "race=White",
        "sex=Male",
        "native-country=United-States",
    ]
    assert task.natural is not None
    assert [rows.tolist() for rows in task.natural] == [[1, 3], [0, 2, 4]]


def test_the_published_code_trains_on_the_row_after_each_doctorate(small: Path) -> None:
    own, after = build(small), build(small, train_rows="next")
    assert after.natural is not None
    assert [rows.tolist() for rows in after.natural] == [
        [2, 3],
        [0, 1, 4],
    ]  # tested on the doctorates all the same
    np.testing.assert_array_equal(after.x, own.x)


def test_the_last_row_is_followed_by_the_first(small: Path) -> None:
    file = small / "adult" / "adult.data"
    file.write_text(file.read_text().replace("HS-grad", "Doctorate"))
    task = build(small, train_rows="next")
    assert task.natural is not None
    assert [rows.tolist() for rows in task.natural] == [[0, 2, 3], [1, 4]]


def test_an_unknown_value_is_a_group_of_zeros(small: Path) -> None:
    x = build(small).x
    assert x[:, :8].sum(axis=1).tolist() == [1, 1, 0, 1, 1]
    assert x[:, 8:].sum(axis=1).tolist() == [7] * 5


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("Bachelors", "Bachelor", r"line 1: unknown education 'Bachelor'; did you mean 'Bachelors'\?"),
        (">50K\n", "50K\n", "line 2: unknown income '50K'"),
        (", 40,", ",", "line 1: expected 15 fields, found 14"),
    ],
)
def test_a_damaged_line_is_named(small: Path, before: str, after: str, message: str) -> None:
    path = small / "adult" / "adult.data"
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(DataError, match=message) as caught:
        build(small)
    assert str(path) in str(caught.value)


def test_a_quotation_mark_that_never_ends_is_a_damage(small: Path) -> None:
    path = small / "adult" / "adult.data"
    path.write_text('"' + path.read_text() * 1000)
    with pytest.raises(DataError, match=f"{path}: cannot be read: field larger than field limit"):
        build(small)


def test_missing_files_are_named_with_the_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"task 'adult': no adult/adult.data, adult/adult.test in ") as caught:
        build(tmp_path)
    assert f"{tmp_path}. Put the files there, or set task.data_dir or FEDSIM_DATA" in str(caught.value)


def test_the_real_clients_have_the_published_sizes(real: Task) -> None:
    """q-FFL and AFL: 413 people with a doctorate and 32,148 others for training, 181 and 16,100 for testing."""
    assert real.natural is not None
    rows = [r[real.official_test[r] == test] for test in (False, True) for r in real.natural]
    assert [len(r) for r in rows] == [413, 32_148, 181, 16_100]
    np.testing.assert_allclose([real.y[r].mean() for r in rows], [0.741, 0.234, 0.691, 0.231], atol=5e-4)
    unknown = (real.x.sum(axis=1) < len(COLUMNS)).reshape(-1)
    assert [int(unknown[~real.official_test].sum()), int(unknown[real.official_test].sum())] == [2399, 1221]


def test_the_public_test_set_is_kept_as_it_is(real: Task) -> None:
    data = federate(real, n_clients=2, division=Division(pool="official", fractions=(1.0, 0.0, 0.0)), seed=3)
    assert data.train.sizes.tolist() == [413, 32_148]
    assert data.test.sizes.tolist() == [181, 16_100]
    assert real.official_test[data.test.indices].all()
    assert (real.x[data.test.rows(0), PHD] == 1).all()
