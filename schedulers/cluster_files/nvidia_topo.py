"""Links between the GPUs of a node, from the output of ``nvidia-smi topo -m``."""

from __future__ import annotations

import re
from itertools import combinations, takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from presage.errors import ConfigError
from presage.schedulers.core.topology import Vertex

# Level of a tree by the kind of link, nearest first. SOC and PSB are SYS and PIX of older drivers
# and of dcgmi.
_LEVELS = ("nvlink", "pix", "pxb", "phb", "numa", "node")
_KINDS = {"PIX": 1, "PSB": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
_NVLINKS = re.compile(r"NV\d+")
_GPU = re.compile(r"GPU\d+")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # the header is underlined
_ADVICE = "save the complete output of `nvidia-smi topo -m`"


def read_links(text: str) -> NDArray[np.int64]:
    """Return the topology level that joins each pair of GPUs of a listing.

    Text around the matrix, network cards and the affinity columns are ignored.

    Returns
    -------
    ndarray of shape (gpus, gpus)
        0 for NVLink, however many links; 1 to 5 for PIX, PXB, PHB, NODE and SYS; -1 for a GPU and
        itself.

    Raises
    ------
    ConfigError
        The text is not such a listing, a line is truncated or missing, a kind of link is unknown,
        or the two entries of a pair differ; the message names the line.
    """
    columns: list[str] = []
    rows: dict[str, list[int]] = {}
    for number, line in enumerate(_ESCAPE.sub("", text).splitlines(), 1):
        words = line.split()
        if not words or not _GPU.fullmatch(words[0]):
            continue
        if not columns:
            columns = _parse_header(words, number)
            continue
        if words[0] in rows:
            raise ConfigError(f"line {number}: a second line of {words[0]}; keep one listing")
        if words[0] not in columns:
            raise ConfigError(f"line {number}: {words[0]} has no column; {_ADVICE}")
        rows[words[0]] = _parse_row(words, columns, number)
    return _matrix(columns, rows)


def _matrix(columns: list[str], rows: dict[str, list[int]]) -> NDArray[np.int64]:
    """Return the levels of the links, shape (gpus, gpus), in the order of the columns."""
    gpus = [column for column in columns if _GPU.fullmatch(column)]
    if not gpus:
        raise ConfigError(f"no line GPU0 GPU1 ... heads a matrix; {_ADVICE}")
    missing = [gpu for gpu in gpus if gpu not in rows]
    if missing:
        raise ConfigError(f"{missing[0]} has no line; {_ADVICE}")
    links = np.array([rows[gpu] for gpu in gpus])
    for a, b in combinations(range(len(gpus)), 2):
        if links[a, b] != links[b, a]:
            raise ConfigError(
                f"{gpus[a]} to {gpus[b]} is another kind of link than back; {_ADVICE}"
            )
    return links


def _parse_header(words: list[str], number: int) -> list[str]:
    """Return the devices of a header: GPUs, then network cards, up to "CPU Affinity"."""
    if len(words) > 1 and _level(words[1]) is not None:
        raise ConfigError(f"line {number}: {words[0]} comes before the header; {_ADVICE}")
    return list(takewhile(lambda word: not word.startswith("CPU"), words))


def _parse_row(words: list[str], columns: list[str], number: int) -> list[int]:
    """Return the levels of the links from one GPU to the others, in order."""
    if len(words) <= len(columns):
        raise ConfigError(
            f"line {number}: {len(words) - 1} entries for {len(columns)} columns; {_ADVICE}"
        )
    found = []
    for column, kind in zip(columns, words[1:], strict=False):
        if not _GPU.fullmatch(column):
            continue
        level = _level(kind)
        if level is None or (level < 0) != (column == words[0]):
            raise ConfigError(
                f"line {number}: {kind!r} from {words[0]} to {column} is not a kind of link; known "
                f"are NV#, {', '.join(_KINDS)}, and X for the GPU itself"
            )
        found.append(level)
    return found


def _level(kind: str) -> int | None:
    if kind == "X":
        return -1
    return 0 if _NVLINKS.fullmatch(kind) else _KINDS.get(kind)


class _Cluster(NamedTuple):
    """GPUs joined so far, with links of at most ``level``."""

    gpus: list[int]
    level: int
    below: tuple[Vertex | int, ...]


def build_node_tree(links: NDArray[np.int64], node: str, first: int) -> Vertex:
    """Build a node's tree by complete linkage: groups are as far apart as their farthest pair.

    A matrix without an equivalent tree, such as a cube mesh, is approximated from above: no pair
    costs less than its link, and some cost more.

    Parameters
    ----------
    links : ndarray of shape (gpus, gpus)
        Levels from :func:`read_links`.
    first : int
        Number of the node's first device.
    """
    clusters = [_Cluster([gpu], -1, (first + gpu,)) for gpu in range(len(links))]
    while len(clusters) > 1:
        level, a, b = min(
            (int(links[np.ix_(one.gpus, other.gpus)].max()), i, j)
            for (i, one), (j, other) in combinations(enumerate(clusters), 2)
        )
        parts = [clusters[a], clusters[b]]
        below = [
            one for part in parts for one in
            (part.below if part.level in {level, -1} else (_vertex(part, node),))
        ]  # fmt: skip
        clusters[a] = _Cluster(parts[0].gpus + parts[1].gpus, level, tuple(below))
        del clusters[b]
    root = clusters[0]
    is_node = root.level in {-1, len(_LEVELS) - 1}
    return Vertex(node, "node", root.below if is_node else (_vertex(root, node),))


def _vertex(part: _Cluster, node: str) -> Vertex:
    """Return a vertex named after the first GPU below it, such as "n0.nvlink2"."""
    level = _LEVELS[part.level]
    return Vertex(f"{node}.{level}{min(part.gpus)}", level, part.below)
