"""Where a reshaped or composed world comes from, as JSON in its `source`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedsim.files import from_json
from fedsim.trace import Trace


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


def edited(trace: Trace, step: Mapping[str, Any]) -> str:
    """Return the source of a world made of `trace` by one more step; steps are listed in the order taken."""
    before = parsed(trace.source)
    if isinstance(before, dict) and set(before) == {"edits", "of"}:
        return told({"edits": [*before["edits"], dict(step)], "of": before["of"]})
    return told({"edits": [dict(step)], "of": described(trace)})


def told(facts: Mapping[str, Any]) -> str:
    """Return facts as a source text, the same for equal facts."""
    return json.dumps(facts, sort_keys=True, default=str)
