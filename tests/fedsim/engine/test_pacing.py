from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.common.errors import ConfigError
from fedsim.common.units import US
from fedsim.engine.pacing import (
    Late,
    Pacing,
    Refill,
    deadline,
    extra_of,
    fedasync,
    fedbuff,
    overselect,
    periodic,
    sync,
)
from fedsim.records.manifest import read_manifest
from fedsim.runs.build import prepare
from fedsim.worlds.trace import Trace
from small import run, small

FEDBUFF = {"preset": "fedbuff", "concurrency": 5, "buffer": 3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"concurrency": 0, "buffer": 1}, "at least 1"),
        ({"concurrency": 3, "buffer": 0}, "at least 1"),
        ({"concurrency": 3, "buffer": 4}, "would never fill"),
        ({"concurrency": 3, "buffer": 3, "deadline_us": 0}, "deadline must be at least 1, found 0"),
        ({"concurrency": 3, "buffer": 3, "refill": "arrival"}, 'late must be "keep"'),
        ({"concurrency": 3, "buffer": None}, "there must be a deadline"),
        ({"concurrency": 3, "buffer": 3, "minimum": 2}, "minimum applies at a deadline"),
        ({"concurrency": 3, "buffer": 3, "deadline_us": 5, "minimum": 4}, "more than one step can take"),
        ({"concurrency": 3, "buffer": 3, "least_candidates": 0}, "least_candidates must be at least 1"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pacing(**arguments)  # type: ignore[arg-type]


def test_more_candidates_than_clients_can_never_be_there() -> None:
    pacing = {"preset": "sync", "clients": 4, "least_candidates": 13}
    with pytest.raises(ConfigError, match=r"least_candidates: expected at most 12, .* found 13"):
        prepare(small(pacing=pacing))


def test_more_candidates_than_are_ever_online_together_are_refused() -> None:
    """A run that waits for them would go on for ever without a step."""
    most = prepare(small()).world.most_online()
    assert 1 < most < 12
    pacing = {"preset": "sync", "clients": 4, "least_candidates": most}
    assert prepare(small(pacing=pacing)).plan.pacing.least_candidates == most
    with pytest.raises(
        ConfigError, match=rf"least_candidates: expected at most {most}, as many .* {most + 1}"
    ):
        prepare(small(pacing=pacing | {"least_candidates": most + 1}))


def test_clients_of_different_periods_are_waited_for_until_they_meet(tmp_path: Path) -> None:
    """One is online for an hour every 5 days, the other every 6 days, one day later: first together on day 25."""
    hour, day = 3600 * US, 86_400 * US
    Trace.of(
        [0, 1], [0, day], [hour, day + hour], "online", clients=2, horizon_us=6 * day, after_end="repeat",
        periods={"online": [5 * day, 6 * day]},
    ).write(tmp_path / "two.parquet")  # fmt: skip
    together = {"preset": "sync", "clients": 2, "least_candidates": 2}
    parts = {"task": {"name": "digits", "clients": 2}, "partition": {"name": "iid"}}
    config = small(
        **parts, pacing=together, world={"trace": str(tmp_path / "two.parquet")}, stop={"steps": 2}
    )
    manifest = read_manifest(run(config, tmp_path).folder)
    assert (manifest["ended_by"], manifest["virtual_us"]) == ("steps", 25 * day)


def test_a_server_that_no_update_would_reach_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dropout\.chance: expected less than 1"):
        prepare(small(pacing=FEDBUFF, dropout={"chance": 1}))
    assert prepare(small(pacing=FEDBUFF, dropout={"chance": 0.99}))
    assert prepare(small(dropout={"chance": 1, "replace": True})), "rounds without updates are steps"


def test_attackers_that_drop_all_updates_are_refused_where_the_server_waits_for_some() -> None:
    everybody, half, others = (
        {"name": "drop", "share": 1.0},
        {"name": "drop", "clients": [*range(6)]},
        [*range(6, 12)],
    )
    for adversary in (everybody, [half, {"name": "drop", "clients": others}]):
        with pytest.raises(
            ConfigError, match=r"adversary: .* drop loses those of all clients: the server waits"
        ):
            prepare(small(pacing=FEDBUFF, adversary=adversary))
        assert prepare(small(adversary=adversary)), "rounds without updates are steps"
    for some in (
        half,
        everybody | {"chance": 0.9},
        everybody | {"until": "1h"},
        everybody | {"steps": [0, 3]},
    ):
        assert prepare(small(pacing=FEDBUFF, adversary=some))


@pytest.mark.parametrize("payload", ["0 B", "5 MB"])
def test_a_clock_that_jobs_would_not_move_is_refused(tmp_path: Path, payload: str) -> None:
    kinds = ["online", "downlink"] if payload == "0 B" else ["online"]
    rows = [(client, 0, 10**9, kind, 1.0) for client in range(12) for kind in kinds]
    columns = (list(column) for column in zip(*rows, strict=True))
    Trace.of(*columns, clients=12, horizon_us=10**9, after_end="repeat").write(tmp_path / "world.parquet")
    timeless = {"world": {"trace": str(tmp_path / "world.parquet")}, "cost": {"payload": payload}}
    with pytest.raises(ConfigError, match=r"stop\.steps: required, .* jobs take zero time"):
        prepare(small(**timeless, stop={"time": "1h"}))
    assert prepare(small(**timeless, stop={"steps": 3, "time": "1h"}))
    periodic = {"preset": "periodic", "concurrency": 3, "deadline": "10min"}
    found = run(small(**timeless, pacing=periodic, stop={"time": "1h"}), tmp_path)
    assert read_manifest(found.folder)["ended_by"] == "time"


@pytest.mark.parametrize(
    "arguments",
    [
        {"concurrency": 1, "buffer": 1, "least_candidates": 1, "max_staleness": 0, "minimum": 0},
        {"concurrency": 3, "buffer": 3, "deadline_us": 1, "minimum": 3},
        {"concurrency": 3, "buffer": 2, "deadline_us": 1, "minimum": 2},
        {"concurrency": 3, "buffer": None, "deadline_us": 1, "minimum": 3},
        {"concurrency": 3, "buffer": 3, "refill": "arrival", "late": "keep"},
        {"concurrency": 3, "buffer": 3, "late": "history"},
    ],
)
def test_what_just_works_is_not_refused(arguments: dict[str, object]) -> None:
    assert Pacing(**arguments).concurrency == arguments["concurrency"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"concurrency": 3, "buffer": 2, "deadline_us": 5, "minimum": 3},
            r"minimum \(3\) is more than one step",
        ),
        ({"concurrency": 3, "buffer": None, "deadline_us": 5, "minimum": 4}, r"minimum \(4\) is more than"),
        ({"concurrency": 3, "buffer": 3, "minimum": -1}, "minimum must be at least 0, found -1"),
        ({"concurrency": 3, "buffer": 3, "max_staleness": -1}, "max_staleness must be at least 0, found -1"),
        ({"concurrency": 3, "buffer": 3, "refill": "arrival", "late": "history"}, 'late must be "keep"'),
        (
            {"concurrency": 3, "buffer": None, "deadline_us": 5, "refill": "arrival", "late": "keep"},
            "without a buffer would let a step have any number",
        ),
        (
            {"concurrency": 0, "buffer": 0},
            "concurrency must be at least 1, found 0\nbuffer must be at least 1",
        ),
    ],
)
def test_what_just_does_not_work_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pacing(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("preset", "concurrency", "buffer", "deadline_us", "refill", "late", "most"),
    [
        (sync(4), 4, 4, None, "step", "drop", 4),
        (overselect(4, 2), 6, 4, None, "step", "drop", 4),
        (deadline(4, 9), 4, 4, 9, "step", "drop", 4),
        (fedbuff(6, 2), 6, 2, None, "arrival", "keep", 2),
        (fedasync(6), 6, 1, None, "arrival", "keep", 1),
        (periodic(6, 9), 6, None, 9, "step", "keep", 6),
    ],
)
def test_presets_are_those_of_the_table(
    preset: Pacing,
    concurrency: int,
    buffer: int | None,
    deadline_us: int | None,
    refill: Refill,
    late: Late,
    most: int,
) -> None:
    assert preset == Pacing(concurrency, buffer, deadline_us, refill, late, 0, None, 1)
    assert preset.most_updates == most
    assert preset.cancels == (late == "drop")


def test_presets_are_values() -> None:
    assert sync(5) == overselect(5, 0)
    assert deadline(5, 10).deadline_us == 10
    assert sync(5).cancels
    assert not fedbuff(5, 2).cancels
    assert fedasync(5) == fedbuff(5, 1)
    assert periodic(5, 10).most_updates == 5
    assert [extra_of(10, factor) for factor in (1, 1.3, 1.31)] == [0, 3, 4]
