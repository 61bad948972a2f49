"""Distribution functions of sessions, gaps and clients' speeds on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedsim.analysis.drawing.picture import Key, Picture, arm_keys, arm_style, panels
from fedsim.analysis.worlds.summary import gap_lengths_us, mean_speeds, session_lengths_us
from fedsim.common.arrays import Floats, Ints
from fedsim.common.units import HOUR_US, show_us
from fedsim.worlds.trace import Trace

_MOST_POINTS, _FEW_DECADES = 500, 2.5


def spell_lengths(trace: Trace) -> Picture:
    """Draw the distribution functions of the lengths of sessions and of the gaps between them, in hours."""
    samples = {
        "sessions": session_lengths_us(trace) / HOUR_US,
        "gaps": gap_lengths_us(trace) / HOUR_US,
    }
    medians = [f"{name}: median {show_us(round(HOUR_US * m))}" for name, m in _medians(samples)]
    return _distributions(samples, "hours", "Lengths of sessions and gaps", medians)


def speeds(trace: Trace) -> Picture | None:
    """Draw the distribution function over clients of computing speed; None if it is not modelled."""
    samples = {"compute": 1e3 * mean_speeds(trace, "compute")}
    medians = [f"median {m:.3g} ms a sample" for _, m in _medians(samples)]
    return _distributions(samples, "ms a sample", "Computing time over clients", medians) if medians else None


def bandwidths(trace: Trace) -> Picture | None:
    """Draw the distribution functions over clients of mean bandwidth; None if none is modelled."""
    samples = {kind: 1e-6 * mean_speeds(trace, kind) for kind in ("downlink", "uplink")}
    medians = [f"{name}: median {m:.3g} MB/s" for name, m in _medians(samples)]
    return _distributions(samples, "MB/s", "Bandwidth over clients", medians) if medians else None


def _medians(samples: Mapping[str, Floats | Ints]) -> list[tuple[str, float]]:
    return [(name, float(np.median(values))) for name, values in samples.items() if len(values)]


def _distributions(samples: Mapping[str, Floats], unit: str, title: str, medians: Sequence[str]) -> Picture:
    figure, (ax,) = panels([2.6])
    names = [name for name, values in samples.items() if len(values)]
    for index, name in enumerate(names):
        _steps(ax, samples[name], index)
    _decades(ax, np.concatenate([values for values in samples.values() if len(values)] or [np.ones(1)]))
    ax.set_ylim(0, 1.02)
    ax.set_xlabel(unit, fontsize=9)
    ax.set_ylabel("share at most", fontsize=9)
    keys: tuple[Key, ...] = arm_keys(names)
    words = "; ".join(medians) or "there are none"
    return Picture(
        figure,
        f"{title}: {words}.",
        f"{title}: share of at most so much. {words[:1].upper()}{words[1:]}.",
        keys,
    )


def _decades(ax: Axes, values: Floats) -> None:
    """Give a logarithmic axis few and plain labels."""
    ax.set_xscale("log")
    wide = np.log10(values.max() / values.min()) > _FEW_DECADES
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=9))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _steps(ax: Axes, values: Floats, index: int) -> None:
    """Draw a distribution function with at most `_MOST_POINTS` points."""
    ordered = np.sort(values)
    at = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), _MOST_POINTS)).round().astype(int))
    share = (at + 1) / len(ordered)
    ax.step(np.append(ordered[at[0]], ordered[at]), np.append(0, share), where="post", **arm_style(index))
