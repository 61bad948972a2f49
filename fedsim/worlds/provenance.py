"""Where a reshaped or composed world comes from, as JSON in its `source`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedsim.common.files import from_json
from fedsim.worlds.trace import Trace


def parsed(source: str) -> Any:
    """Return a source text as what its JSON says, or as it is."""
    try:
        return from_json(source)
    except ValueError:
        return source


def described(trace: Trace) -> dict[str, Any]:
    """Return what identifies a world that another one is made of."""
    return {
        "digest": trace.digest(),
        "clients": trace.clients,
        "horizon_us": trace.horizon_us,
        "source": parsed(trace.source),
    }


def steps(trace: Trace) -> list[dict[str, Any]]:
    """Return the steps in which a world was made of another one, in the order taken."""
    source = parsed(trace.source)
    found = source["edits"] if isinstance(source, dict) and set(source) == {"edits", "of"} else []
    return found if isinstance(found, list) else []


def edited(trace: Trace, step: Mapping[str, Any]) -> str:
    """Return the source of a world made of `trace` by one more step; steps are listed in the order taken."""
    before = steps(trace)
    return told(
        {"edits": [*before, dict(step)], "of": parsed(trace.source)["of"] if before else described(trace)}
    )


def told(facts: Mapping[str, Any]) -> str:
    """Return facts as a source text, the same for equal facts."""
    return json.dumps(facts, sort_keys=True, default=str)
