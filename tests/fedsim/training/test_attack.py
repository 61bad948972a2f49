"""Who attacks and when; that runs show it, and are the same however they are computed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim import analysis
from fedsim.common.errors import ConfigError
from fedsim.common.units import US
from fedsim.config.load import load_config
from fedsim.config.run import RunConfig
from fedsim.data.federated_data import Task
from fedsim.execution.actor_pool import RayPool
from fedsim.runs.progress import Progress
from fedsim.runs.resume import resume
from fedsim.runs.simulate import simulate
from fedsim.training.attack import Adversary, Message, attacked
from fedsim.training.job import Cohort, Report, nth_jobs
from small import run, small

K = 12


def jobs(k: int = 400) -> Cohort:
    draws = np.random.default_rng(0)
    clients, nths, versions = draws.integers((K, 30, 50), size=(k, 3)).T
    return Cohort(np.arange(k), clients, nths, versions, np.ones(k), draws.integers(0, 3600 * US, k))


def test_who_and_when_are_the_intersection_of_all_that_is_said() -> None:
    cohort = jobs()
    one = Adversary("zero", {}, (2, 5), None, 600 * US, 3000 * US, (10, 40))
    expected = (
        np.isin(cohort.clients, (2, 5))
        & (cohort.dispatch_us >= 600 * US)
        & (cohort.dispatch_us < 3000 * US)
        & (cohort.versions >= 10)
        & (cohort.versions < 40)
    )
    assert expected.any()
    np.testing.assert_array_equal(one.strikes(7, cohort), expected)


def test_an_attack_does_not_hide_a_vector_that_is_not_finite(tmp_path: Path) -> None:
    """A client whose training overflows sends a NaN control variate beside the zeros of the attack."""
    draws, client = np.random.default_rng(0), np.repeat(np.arange(4), [8, 8, 8, 200])
    task = Task.from_arrays(
        draws.normal(size=(224, 8)).astype(np.float32), draws.integers(0, 2, 224), client=client
    )
    config: dict[str, Any] = {
        "name": "overflow",
        "task": {"fractions": [0.75, 0.0, 0.25]},
        "model": {"name": "mlp", "hidden": [16, 16]},
        "pacing": {"preset": "sync", "clients": 4},
        "train": {"batch_size": 4, "weight_decay": 200.0},
        "client": {"name": "scaffold"},
        "algorithm": {"name": "scaffold"},
        "adversary": {"name": "zero", "clients": [3]},
        "stop": {"steps": 3},
    }
    [found] = simulate(config, task=task, out=tmp_path, workers=0)
    said = analysis.open_run(found.folder).frame("jobs").groupby("client", observed=True).status.agg(set)
    assert said.tolist() == [{"aggregated"}] * 3 + [{"nonfinite"}]


def test_chance_depends_on_seed_client_and_nth_job_alone() -> None:
    cohort = jobs()
    one = Adversary("zero", {}, tuple(range(K)), chance=0.3)
    struck = one.strikes(7, cohort)
    assert 0.2 < struck.mean() < 0.4
    later = Cohort(
        cohort.ids + 9, cohort.clients, cohort.nths, cohort.versions + 1, cohort.shares, 0 * cohort.ids
    )
    np.testing.assert_array_equal(one.strikes(7, later), struck)
    np.testing.assert_array_equal(one.strikes(7, cohort.part(slice(5, 6))), struck[5:6])
    assert (one.strikes(8, cohort) != struck).any()


def test_clients_may_be_named_in_any_order() -> None:
    cohort = jobs()
    struck = Adversary("zero", {}, (7, 2, 2, 9)).strikes(7, cohort)
    np.testing.assert_array_equal(struck, np.isin(cohort.clients, (2, 7, 9)))
    assert not Adversary("zero", {}, ()).strikes(7, cohort).any()


def test_to_look_for_one_of_many_attackers_takes_no_time() -> None:
    many, one = Adversary("drop", {}, tuple(range(200_000))), jobs().part(slice(0, 1))
    started = time.process_time()
    assert all(many.strikes(7, one)[0] for _ in range(400))
    assert time.process_time() - started < 2, "some 25 ms each, it was"


def test_a_loss_that_nobody_asked_for_stays_so() -> None:
    message = Message(torch.zeros(3), Report(loss_train=2.0), None, np.random.default_rng(0))
    told = message.with_losses(lambda loss: 0.0).report
    assert (told.loss_train, told.finite) == (0.0, True)
    assert np.isnan([told.loss_before, told.loss_rms, told.loss_after]).all()


def test_larger_shares_hold_smaller_ones() -> None:
    drawn = [
        set(Adversary("zero", share=s).with_clients_drawn(K, 3).clients or ()) for s in (0.01, 0.25, 0.5, 1.0)
    ]
    assert [len(d) for d in drawn] == [1, 3, 6, 12]
    assert drawn[0] < drawn[1] < drawn[2] < drawn[3]
    assert drawn[1] != set(Adversary("zero", share=0.25).with_clients_drawn(K, 4).clients or ())


def test_a_job_is_its_client_s_nth_in_order_of_dispatch() -> None:
    ids, clients = np.array([5, 1, 3, 0, 2]), np.array([1, 1, 0, 1, 0])
    assert nth_jobs(ids, clients).tolist() == [2, 1, 1, 0, 0]


def frame(folder: Path) -> Any:
    return analysis.open_run(folder).frame("jobs")


def test_a_biased_loss_is_reported_in_the_jobs_that_are_said_to_be_attacked(tmp_path: Path) -> None:
    table = {"name": "loss_bias", "bias": 5.0, "share": 0.5, "chance": 0.7, "after": "1min", "steps": [0, 6]}
    deaf = {"algorithm": {"name": "fedavg"}}  # so both runs train the same models
    honest, biased = small(name="honest", **deaf), small(name="biased", adversary=table, **deaf)
    before, after = (frame(run(config, tmp_path).folder) for config in (honest, biased))
    struck = attacked(biased.adversaries(), biased.seed, after)["loss_bias"]
    trained = before.loss_train.notna().to_numpy()
    assert (struck & trained).any()
    assert (~struck & trained).any()
    gap = (after.loss_train - before.loss_train)[trained]
    np.testing.assert_allclose(gap, np.where(struck, 5.0, 0.0)[trained], atol=1e-12)


def test_the_manifest_and_the_resolved_configuration_say_who_attacks(tmp_path: Path) -> None:
    config = small(adversary=[{"name": "scale", "clients": [4, 1]}, {"name": "sign_flip", "share": 0.25}])
    folder = run(config, tmp_path).folder
    opened = analysis.open_run(folder)
    listed = opened.manifest["adversaries"]
    assert [one["name"] for one in listed] == ["scale", "sign_flip"]
    assert listed[0]["clients"] == [4, 1]
    assert len(listed[1]["clients"]) == 3
    assert set(opened.adversaries) == {1, 4, *listed[1]["clients"]}
    assert load_config(folder / "config.resolved.toml")[0].resolved() == config.resolved() | {
        key: opened.config[key] for key in ("train", "memory")
    }
    everybody, others = opened.final(), opened.final().without(opened.adversaries)
    assert set(others.client) == set(everybody.client) - set(opened.adversaries)
    shown = opened.history(metrics=["mean_percent"], honest=True)
    assert shown.mean_percent.iloc[-1] == pytest.approx(100 * others.accuracy.mean())


def test_what_is_dropped_is_lost_at_the_end_of_its_upload(tmp_path: Path) -> None:
    config = small(adversary={"name": "drop", "share": 0.4, "steps": [2, 9]}, dropout={"notice": "20s"})
    found = frame(run(config, tmp_path).folder)
    struck = attacked(config.adversaries(), config.seed, found)["drop"]
    assert struck.any()
    assert not (found.status[struck] == "aggregated").any()
    lost = found[struck & (found.status == "lost")]
    assert (lost.phase == "upload").any()
    assert lost.loss_train.isna().all()


ATTACKS: dict[str, Any] = {
    "loss_bias": {"name": "loss_bias", "bias": 3.0},
    "scale": {"name": "scale", "losses": True},
    "sign_flip": {"name": "sign_flip"},
    "gaussian_noise": {"name": "gaussian_noise"},
    "label_flip": {"name": "label_flip"},
    "zero": {"name": "zero"},
    "replay": {"name": "replay"},
    "nan": {"name": "nan"},
    "drop": {"name": "drop"},
}


def attack(name: str, **more: Any) -> RunConfig:
    return small(
        name=name,
        adversary=ATTACKS[name] | {"share": 0.5},
        pacing={"preset": "fedbuff", "concurrency": 5, "buffer": 3},
        stop={"steps": 5},
        **more,
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_changes_a_run_and_a_repetition_is_the_same(name: str, tmp_path: Path) -> None:
    honest = run(attack(name).model_copy(update={"adversary": (), "name": "honest"}), tmp_path)
    found = [run(attack(name), tmp_path / str(i)) for i in range(2)]
    assert found[0].digest == found[1].digest != honest.digest


EVERYTHING = [
    {"name": "label_flip", "share": 0.3, "chance": 0.5},
    {"name": "replay", "share": 0.5},
    {"name": "scale", "clients": [0, 1, 2], "factor": -3.0},
    {"name": "gaussian_noise", "share": 0.7, "after": "2min"},
    {"name": "loss_bias", "share": 0.6},
]


@pytest.mark.ray
def test_any_number_of_workers_gives_the_same_bits(tmp_path: Path, two_workers: RayPool) -> None:
    config = small(adversary=EVERYTHING)
    assert run(config, tmp_path / "0").digest == run(config, tmp_path / "2", workers=two_workers).digest


def test_a_run_that_goes_on_from_a_checkpoint_remembers_what_is_replayed(tmp_path: Path) -> None:
    config = small(adversary=EVERYTHING, checkpoint={"every_steps": 5})

    def stop(progress: Progress) -> None:
        if progress.run_state.step == 6:
            raise InterruptedError

    whole = run(config, tmp_path / "whole").digest
    with pytest.raises(InterruptedError):
        run(config, tmp_path / "cut", watch=stop)
    assert resume(tmp_path / "cut" / "small", workers=0).digest == whole


BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no such attack": ({"name": "sign_flop", "share": 0.2}, ["adversary.0", "did you mean 'sign_flip'"]),
    "no such option": ({"name": "scale", "share": 0.2, "facter": 2}, ["did you mean 'factor'"]),
    "nobody": ({"name": "scale"}, ["give 'clients'", "or 'share'"]),
    "two answers": ({"name": "scale", "share": 0.1, "clients": [1]}, ["give 'clients'", "or 'share'"]),
    "no such client": ({"name": "scale", "clients": [3, 12]}, ["from 0 to 11, found 12"]),
    "no time": ({"name": "scale", "share": 0.1, "after": "2h", "until": "1h"}, ["later than 'after'"]),
    "no steps": ({"name": "scale", "share": 0.1, "steps": [5, 5]}, ["0 <= first < end, found [5, 5]"]),
    "a share above one": ({"name": "scale", "share": 1.5}, ["adversary.0.share", "1.5"]),
}


@pytest.mark.parametrize(("table", "words"), BAD.values(), ids=BAD.keys())
def test_a_mistake_is_named(table: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        small(adversary=table)
    for word in words:
        assert word in str(caught.value)


def test_memory_is_not_shared_with_a_client_method_that_needs_it(tmp_path: Path) -> None:
    config = small(adversary={"name": "replay", "share": 0.5}, client={"name": "ditto"})
    with pytest.raises(
        ConfigError, match="adversary 'replay': needs the memory that the client method 'ditto'"
    ):
        run(config, tmp_path)


def test_labels_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    config = small(adversary={"name": "label_flip", "share": 0.9, "change": [[5, 10]]})
    with pytest.raises(ConfigError, match="from 0 to 9, found 10"):
        run(config, tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ([], "'change'.*: List should have at least 1 item, found"),
        (
            [5, 3],
            r"'change\.0': Input should be a list, found 5\n.*'change\.1': Input should be a list, found 3$",
        ),
        ([[5]], r"option 'change\.0\.1': missing in \[5\]"),
        ([[5, 3], [4, 3], [5, 4]], "one change of each label, found more of 5"),
    ],
)
def test_changes_of_labels_are_said_once(change: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        run(small(adversary={"name": "label_flip", "share": 0.9, "change": change}), tmp_path)
