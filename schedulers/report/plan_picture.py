"""Picture of a gang's placement on the topology tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.topology import Topology, Vertex

# Inches, as are all coordinates; devices are in a row below y = 0, the tree is above it.
_DEVICE, _NODE_GAP, _GROUP_GAP, _ROW = 0.5, 0.22, 0.25, 0.62
_BOX_WIDTH, _BOX_HEIGHT = 0.42, 1.15
_LEFT, _RIGHT, _TOP, _RING, _BOTTOM = 1.45, 0.45, 0.8, 1.45, 1.1
_MEMBER, _CLOSED = "#123f8c", "#d8d8d8"
_LEVEL_COLOURS = ("#00703c", "#7a9a01", "#c98a00", "#d1471b", "#7d0025")  # innermost first
_SLOWDOWN_COLOURS = "YlOrBr"  # colour map of devices
_MAX_SHADE = 0.6  # the darkest shade on which text is legible
_MAX_NAME = 10  # characters of a job's name


def draw_plan(
    path: Path,
    cluster: Cluster,
    *,
    tenants: Sequence[Sequence[str]],
    slowdowns: NDArray[np.float64],
    ring: Sequence[int],
    title: str,
) -> None:
    """Write a picture of the tree, the jobs on each device and the ring through the gang.

    Parameters
    ----------
    path : Path
        File name ending in .svg or .png.
    tenants : sequence of sequence of str
        Names of the other jobs on each device, by device number.
    slowdowns : ndarray of shape (devices,)
        Largest slowdown on each device when co-located with a member of the gang, shown as its
        colour; infinite where no member may be placed.
    ring : sequence of int
        Devices of the gang, in the order of the gradient ring.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.figure import Figure

    tree, x = cluster.topology, _device_positions(cluster)
    y = {level: 0.45 + _ROW * i for i, level in enumerate(tree.levels)}
    level_colours = LinearSegmentedColormap.from_list("levels", _LEVEL_COLOURS)
    colours = dict(
        zip(tree.levels, level_colours(np.linspace(0.0, 1.0, len(tree.levels))), strict=True)
    )
    pale = LinearSegmentedColormap.from_list(
        "pale", colormaps[_SLOWDOWN_COLOURS](np.linspace(0.0, _MAX_SHADE, 16))
    )
    max_slowdown = max(slowdowns[np.isfinite(slowdowns)].max(initial=1.0), 1.05)
    shades = ScalarMappable(Normalize(1.0, max_slowdown), pale)

    left, right = -_LEFT, float(x.max()) + _RIGHT
    bottom, top = -_BOX_HEIGHT - _RING - _BOTTOM, max(y.values()) + _TOP
    figure = Figure(figsize=(right - left, top - bottom), dpi=100)
    panel = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(left, right), ylim=(bottom, top))
    panel.axis("off")
    panel.text((left + right) / 2, top - 0.25, title, ha="center", va="center", fontsize=13)
    for level in tree.levels:
        label = f"{level}: {tree.costs[level]:g}"
        panel.text(left + 0.2, y[level], label, va="center", fontsize=12, color=colours[level])
    _draw_tree(panel, tree, x, y, colours)
    for device in range(cluster.devices):
        shade = shades.to_rgba(slowdowns[device]) if np.isfinite(slowdowns[device]) else None
        _draw_device(panel, cluster, device, float(x[device]), tenants[device], shade)
    _draw_ring(panel, tree, x[list(ring)], ring, colours)
    _draw_legend(figure, tree, ring, colours, shades)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _device_positions(cluster: Cluster) -> NDArray[np.float64]:
    """Return the horizontal position of each device: depth-first, with gaps between nodes."""
    tree, node_of = cluster.topology, cluster.node_of
    adjacent = list(pairwise(tree.depth_first.tolist()))
    crossed_level = {
        device: int(tree.common_level(before, device))
        for before, device in adjacent
        if node_of[before] != node_of[device]
    }
    outer = sorted(set(crossed_level.values()))
    x = np.zeros(cluster.devices)
    for before, device in adjacent:
        x[device] = x[before] + _DEVICE
        if device in crossed_level:
            x[device] += _NODE_GAP + _GROUP_GAP * outer.index(crossed_level[device])
    return x


def _draw_tree(
    panel: Any,
    tree: Topology,
    x: NDArray[np.float64],
    y: Mapping[str, float],
    colours: Mapping[str, Any],
) -> None:
    def walk(vertex: Vertex) -> float:
        """Draw a vertex and return its horizontal position."""
        level = y[vertex.level]
        ends = []
        for child in vertex.below:
            at, low = (x[child], 0.0) if isinstance(child, int) else (walk(child), y[child.level])
            panel.plot([at, at], [low, level], color=colours[vertex.level], linewidth=2, zorder=1)
            ends.append(at)
        panel.plot(
            [min(ends), max(ends)], [level, level], color=colours[vertex.level], linewidth=4,
            solid_capstyle="round", zorder=2,
        )  # fmt: skip
        middle = (min(ends) + max(ends)) / 2
        panel.text(
            middle, level + 0.06, _label(vertex), ha="center", va="bottom", fontsize=10, zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
        return float(middle)

    walk(tree.root)


def _label(vertex: Vertex) -> str:
    """Return the label: a node's name, the level inside a node, level and name above nodes."""
    if vertex.level == "node" or vertex.name.startswith(vertex.level):
        return vertex.name
    return vertex.level if "." in vertex.name else f"{vertex.level} {vertex.name}"


def _draw_device(
    panel: Any, cluster: Cluster, device: int, x: float, tenants: Sequence[str], shade: Any
) -> None:
    """Draw a box with the device's number in its node and the names of its jobs."""
    from matplotlib.patches import Rectangle

    panel.add_patch(
        Rectangle(
            (x - _BOX_WIDTH / 2, -_BOX_HEIGHT), _BOX_WIDTH, _BOX_HEIGHT,
            facecolor=_CLOSED if shade is None else shade, edgecolor="#606060", linewidth=0.8,
            hatch="///" if shade is None else None, zorder=3,
        )
    )  # fmt: skip
    names = [name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…" for name in tenants]
    number = cluster.name_of(device).rpartition("/")[2]
    panel.text(x, -0.05, number, ha="center", va="top", fontsize=9, color="#505050", zorder=5)
    panel.text(
        x - _BOX_WIDTH / 6, -0.27, "\n".join(names), ha="center", va="top", rotation=90,
        fontsize=11, zorder=5,
        bbox={"facecolor": _CLOSED, "edgecolor": "none", "pad": 1} if shade is None else None,
    )  # fmt: skip


def _draw_ring(
    panel: Any,
    tree: Topology,
    x: NDArray[np.float64],
    ring: Sequence[int],
    colours: Mapping[str, Any],
) -> None:
    """Draw frames around the members, and arcs below them from each to the next."""
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path as Curve

    for at in x:
        panel.add_patch(
            Rectangle(
                (at - _BOX_WIDTH / 2, -_BOX_HEIGHT), _BOX_WIDTH, _BOX_HEIGHT, fill=False,
                edgecolor=_MEMBER, linewidth=3.5, zorder=6,
            )
        )  # fmt: skip
        panel.text(
            at + _BOX_WIDTH / 4, -_BOX_HEIGHT + 0.07, "gang", ha="center", va="bottom", rotation=90,
            fontsize=11, fontweight="bold", color=_MEMBER, zorder=6,
        )  # fmt: skip
    if len(ring) < 2:
        return
    widest = float(x.max() - x.min())
    for i, here in enumerate(ring):
        following = (i + 1) % len(ring)
        level = tree.levels[int(tree.common_level(here, ring[following]))]
        depth = 0.25 + 1.05 * abs(x[following] - x[i]) / widest
        low = -_BOX_HEIGHT - 4 / 3 * depth  # the curve reaches three quarters of this depth
        points = [(x[i], -_BOX_HEIGHT), (x[i], low), (x[following], low),
                  (x[following], -_BOX_HEIGHT)]  # fmt: skip
        curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
        panel.add_patch(
            PathPatch(curve, fill=False, edgecolor=colours[level], linewidth=3, zorder=4)
        )


def _draw_legend(
    figure: Any, tree: Topology, ring: Sequence[int], colours: Mapping[str, Any], shades: Any
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    width, height = figure.get_size_inches()
    bar = figure.add_axes((0.35 / width, 0.62 / height, 3.0 / width, 0.16 / height))
    figure.colorbar(shades, cax=bar, orientation="horizontal")
    bar.set_title("largest slowdown co-located with a member, x", fontsize=10, loc="left")
    crossed = tree.common_level(np.array(ring), np.roll(ring, -1)).tolist() if len(ring) > 1 else []
    edges = [
        Line2D([], [], color=colours[level], linewidth=3,
               label=f"{crossed.count(i)} of the ring's edges over {level}")
        for i, level in enumerate(tree.levels) if i in crossed
    ]  # fmt: skip
    boxes = [
        Patch(facecolor="none", edgecolor=_MEMBER, linewidth=3, label="member of the gang"),
        Patch(facecolor=_CLOSED, edgecolor="#606060", hatch="///",
              label="no capacity, or slowdown too large"),
    ]  # fmt: skip
    for handles, place in ((boxes, 3.7), (edges, 7.2)):
        figure.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(place / width, 0.12 / height),
            fontsize=10, frameon=False,
        )  # fmt: skip
