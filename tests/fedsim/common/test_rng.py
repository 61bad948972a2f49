from __future__ import annotations

import numpy as np

from fedsim.common.rng import Draws, key, rng, torch_seed


def test_equal_arguments_give_equal_draws_and_any_change_gives_others() -> None:
    draws = {
        name: rng(*arguments).integers(2**63, size=4).tolist()
        for name, arguments in {
            "same": (1, "batches", 3, 5),
            "again": (1, "batches", 3, 5),
            "seed": (2, "batches", 3, 5),
            "purpose": (1, "select", 3, 5),
            "ids": (1, "batches", 35),
            "order": (1, "batches", 5, 3),
        }.items()
    }
    assert draws["same"] == draws["again"]
    assert len({tuple(d) for d in draws.values()}) == 5


def test_the_key_does_not_change_between_versions() -> None:
    """A golden value: changing it would change every published digest."""
    assert key(1, "batches", 3, 5) == 65752689941298957385422311591137739133
    assert key(1, "batches", np.int64(3), 5) == key(1, "batches", 3, 5)


def test_torch_seeds_fit() -> None:
    assert all(0 <= torch_seed(s, "init") < 2**63 for s in range(200))


def test_draws_are_a_function_of_seed_purpose_and_ids() -> None:
    draws, again, other = Draws(1, "select"), Draws(1, "select"), Draws(2, "select")
    first = draws.at(5).random(3).tolist()
    draws.at(6).integers(10)
    assert draws.at(5).random(3).tolist() == first == again.at(5).random(3).tolist()
    assert other.at(5).random(3).tolist() != first != draws.at(7).random(3).tolist()


def test_draws_are_uniform() -> None:
    draws = Draws(3, "select")
    first = np.array([draws.at(i).random() for i in range(4000)])
    assert abs(first.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.05
