"""The command that shows again what killed a process."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import tomli_w

from fedsim.common.errors import ConfigError
from fedsim.config.load import load_config
from fedsim.runs.build import prepare
from fedsim.runs.session import reproduction
from fedsim.server.history_storage import LADDER, Rung
from small import small


@pytest.mark.parametrize("rung", LADDER)
def test_the_command_that_reproduces_a_death_on_a_gpu_runs_on_the_processor(
    tmp_path: Path, rung: Rung
) -> None:
    config = prepare(small(memory={"history": rung, "slots": 5}), device="cuda").config
    file = tmp_path / "config.resolved.toml"
    file.write_text(tomli_w.dumps(config.resolved()))
    if rung.startswith("host"):
        with pytest.raises(ConfigError, match=r"memory\.history"):
            prepare(load_config(file)[0])
    words = shlex.split(reproduction(tmp_path, 4, config))
    assert words[:3] == ["fedsim", "run", str(file)]
    assert words[words.index("--device") + 1] == "cpu"
    sets = tuple(after for word, after in pairwise(words) if word == "--set")
    found = prepare(load_config(file, sets)[0]).config
    assert found.stop.steps == 6
    assert found.memory.history == rung.removeprefix("host_")
    assert found.memory.slots == 5
