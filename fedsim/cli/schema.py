"""`fedsim schema`: JSON schemas, with which editors complete and check configurations."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from typer import Argument

from fedsim.common.terminal import say


def schema(
    of: Annotated[Literal["run", "study"], Argument(help="What the file configures.")] = "run",
) -> None:
    """Print a JSON schema, for editors that complete and check TOML."""
    from fedsim.config.schema import run_schema, study_schema  # imported here: it imports all plug-ins

    say(json.dumps(run_schema() if of == "run" else study_schema(), indent=1, ensure_ascii=False))
