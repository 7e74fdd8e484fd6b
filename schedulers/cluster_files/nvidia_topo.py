"""How the GPUs of a node are linked, from what ``nvidia-smi topo -m`` prints."""

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
_ADVICE = "save what `nvidia-smi topo -m` prints, all of it"


def read_links(text: str) -> NDArray[np.int64]:
    """Return the level of a tree that joins each two GPUs of a listing.

    Text around the matrix, its network cards and its columns of affinities are ignored.

    Returns
    -------
    ndarray of shape (gpus, gpus)
        0 for NVLink, however many links; 1 to 5 for PIX, PXB, PHB, NODE and SYS; -1 for a GPU and
        itself.

    Raises
    ------
    ConfigError
        It is no such listing, a line is cut or missing, a kind of link is not known, or two
        entries for one pair differ; names the line.
    """
    columns: list[str] = []
    rows: dict[str, list[int]] = {}
    for number, line in enumerate(_ESCAPE.sub("", text).splitlines(), 1):
        words = line.split()
        if not words or not _GPU.fullmatch(words[0]):
            continue
        if not columns:
            columns = _columns(words, number)
            continue
        if words[0] in rows:
            raise ConfigError(f"line {number}: a second line of {words[0]}; keep one listing")
        if words[0] not in columns:
            raise ConfigError(f"line {number}: {words[0]} has no column; {_ADVICE}")
        rows[words[0]] = _row(words, columns, number)
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


def _columns(words: list[str], number: int) -> list[str]:
    """Names of the devices in a header: GPUs, then network cards, up to "CPU Affinity"."""
    if len(words) > 1 and _level(words[1]) is not None:
        raise ConfigError(f"line {number}: {words[0]} comes before the header; {_ADVICE}")
    return list(takewhile(lambda word: not word.startswith("CPU"), words))


def _row(words: list[str], columns: list[str], number: int) -> list[int]:
    """Levels of the links of one GPU to the others, in their order."""
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
                f"line {number}: {kind!r} from {words[0]} to {column} is no kind of link; there "
                f"are NV#, {', '.join(_KINDS)}, and X for itself"
            )
        found.append(level)
    return found


def _level(kind: str) -> int | None:
    if kind == "X":
        return -1
    return 0 if _NVLINKS.fullmatch(kind) else _KINDS.get(kind)


class _Cluster(NamedTuple):
    """GPUs that are joined so far, through a link of a level at most."""

    gpus: list[int]
    level: int
    below: tuple[Vertex | int, ...]


def joined(links: NDArray[np.int64], node: str, first: int) -> Vertex:
    """A node's tree, by complete linkage: devices are as far apart as the farthest two are.

    A matrix that is no tree's, such as a cube mesh, where neighbours of neighbours are not
    neighbours, is so approximated from above: no pair costs less than its link, some cost more.

    Parameters
    ----------
    links : ndarray of shape (gpus, gpus)
        As :func:`read_links` gives them.
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
    whole = clusters[0]
    within = whole.level in {-1, len(_LEVELS) - 1}
    return Vertex(node, "node", whole.below if within else (_vertex(whole, node),))


def _vertex(part: _Cluster, node: str) -> Vertex:
    """Called after the first GPU below it, as "n0.nvlink2"."""
    level = _LEVELS[part.level]
    return Vertex(f"{node}.{level}{min(part.gpus)}", level, part.below)
