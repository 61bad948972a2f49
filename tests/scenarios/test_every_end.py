"""What follows a world's end: the scenario's own word, and what a run that is longer is told."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from fedsim import plugins
from fedsim.cli.main import app
from fedsim.common.errors import EndOfWorld
from fedsim.config.run import RunConfig
from fedsim.config.world import WorldConfig, source_trace, world_trace
from fedsim.runs.plan.plan import plan_run
from fedsim.runs.simulate import simulate
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.world import World
from made_worlds import DAY
from small import small

ENDING = {"permanent_dropout", "late_joiners"}
"""Scenarios in which a lap would undo what happened: who left for ever is back, who joined is gone."""
HOUR = "1h"


def made_by_default(scenario: str, **more: Any) -> Any:
    config = WorldConfig(scenario=scenario, horizon="12h", **more)
    return world_trace(config, clients=20, seed=1)


@pytest.mark.parametrize("scenario", sorted(plugins.names("scenario")))
def test_a_world_repeats_unless_its_point_is_an_end(scenario: str) -> None:
    expected = "stop" if scenario in ENDING else "repeat"
    assert made_by_default(scenario).after_end == expected
    resolved = WorldConfig(scenario=scenario).model_dump(mode="json", exclude_none=True)
    assert resolved["after_end"] == expected


def test_who_left_for_ever_does_not_come_back_with_the_next_lap() -> None:
    options = {"life": {"mean": "1h"}, "loyal_share": 0.0, "mean_off": 0}
    world = World(made_by_default("permanent_dropout", options=options))
    left = world.online(0) & ~world.online(DAY // 2 - 1)
    assert left.any()
    assert not (world.online(DAY // 2) & left).any()
    again = World(made_by_default("permanent_dropout", options=options, after_end="repeat"))
    assert (again.online(DAY // 2) & left).sum() == left.sum()


def test_python_takes_the_scenarios_own_end_where_none_is_given() -> None:
    for given, expected in ((None, "stop"), ("error", "error"), ("repeat", "repeat")):
        trace = make_trace("late_joiners", {}, clients=2, horizon_us=DAY, seed=1, after_end=given)
        assert trace.after_end == expected


def test_a_joined_world_ends_as_its_source_of_availability_does(tmp_path: Path) -> None:
    for name, scenario in (("people", "permanent_dropout"), ("phones", "always_on")):
        table = {"world": {"scenario": scenario, "clients": 5, "horizon": "1d"}}
        (tmp_path / f"{name}.toml").write_text(tomli_w.dumps(table))
    join = {"availability": str(tmp_path / "people.toml"), "compute": str(tmp_path / "phones.toml")}
    (tmp_path / "joined.toml").write_text(tomli_w.dumps({"world": {"join": join}}))
    assert source_trace(tmp_path / "joined.toml", clients=5, seed=1).after_end == "stop"


def longer(**changes: Any) -> RunConfig:
    world = {"scenario": "churn", "horizon": HOUR, "options": {"mean_on": "10min", "mean_off": "10min"}}
    return small(
        **{"world": world, "stop": {"time": "61min", "steps": 3}, "evaluate": {"every_steps": 0}} | changes
    )


@pytest.mark.parametrize(
    ("after_end", "then"),
    [
        ("repeat", "begins again"),
        ("stop", "has nobody online, which ends the run"),
        ("error", "fails the run"),
    ],
)
def test_a_run_that_is_longer_than_its_world_is_told_at_its_start(
    tmp_path: Path, after_end: str, then: str
) -> None:
    config = longer()
    config = small(**{**_tables(config), "world": {**_tables(config)["world"], "after_end": after_end}})
    with pytest.warns(EndOfWorld) as told:
        simulate(config, out=tmp_path, workers=0)
    assert re.search(rf"small: longer than its world, .*01:00:00 and then .*{then}", str(told[0].message))


def _tables(config: RunConfig) -> dict[str, Any]:
    raw = config.resolved()
    return {key: raw[key] for key in ("world", "stop", "evaluate")}


def test_nothing_is_said_of_a_run_as_long_as_its_world(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        simulate(longer(stop={"time": HOUR, "steps": 3}), out=tmp_path, workers=0)
    assert not told


def test_a_plan_says_it_of_a_run_that_steps_end() -> None:
    world = {"scenario": "churn", "horizon": "30s", "options": {"mean_on": "10min", "mean_off": "10min"}}
    assert "begins again" in plan_run(longer(world=world, stop={"steps": 30}), workers=0).outlives
    assert plan_run(longer(stop={"steps": 1}), workers=0).outlives == ""


@pytest.mark.parametrize(("stop", "horizon"), [({"time": "2min"}, "1min"), ({"steps": 30}, "30s")], ids=str)
@pytest.mark.parametrize("quiet", [False, True])
def test_the_command_says_it_in_one_line_and_not_if_quiet(
    tmp_path: Path, stop: dict[str, Any], horizon: str, quiet: bool
) -> None:
    world = {"scenario": "churn", "horizon": horizon, "options": {"mean_on": "10min", "mean_off": "10min"}}
    raw = longer(world=world, stop=stop).resolved()
    (tmp_path / "long.toml").write_text(tomli_w.dumps({k: v for k, v in raw.items() if k != "name"}))
    asked = ["run", str(tmp_path / "long.toml"), "--workers", "0", "--out", str(tmp_path)]
    said = CliRunner().invoke(app, [*asked, "--quiet"] if quiet else asked)
    assert said.exit_code == 0, said.output
    told = [line for line in said.output.splitlines() if "longer than its world" in line]
    assert len(told) == (0 if quiet else 1)
