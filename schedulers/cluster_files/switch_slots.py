"""Parser of the key ``topology.inc``: slots of the switches with in-network computing.

.. code-block:: yaml

    topology:
      groups: {rack: 16, spine: 2}
      inc:
        rack: 1  # of each rack's switch
        spine: {spine0: 2, "spine[1-3]": 1}  # no slots in the others
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from presage.errors import ConfigError
from presage.schedulers.cluster_files.hostlist import expand_hostlist
from presage.schedulers.core.topology import Vertex
from presage.system.text.known_names import check_known

MAX_SLOTS = 256  # of the software switch


def with_slots(root: Vertex, section: Mapping[str, Any], levels: Collection[str]) -> Vertex:
    """Return the tree with the slots of its switches.

    Parameters
    ----------
    section : Mapping of str to Any
        Content of ``topology.inc``: by level, slots or a mapping of names to slots.
    levels : collection of str
        Levels above nodes.

    Raises
    ------
    ConfigError
        A level or name is unknown or given twice, or slots are no integer in their range.
    """
    check_known(section, levels, "topology.inc.")
    names: dict[str, list[str]] = {}
    for vertex in _vertices(root):
        names.setdefault(vertex.level, []).append(vertex.name)
    slots = {
        (level, name): found
        for level, spec in section.items()
        for name, found in _slots_of_level(spec, names[level], f"topology.inc.{level}").items()
    }
    return _rebuilt(root, slots) if slots else root


def _vertices(vertex: Vertex) -> Iterator[Vertex]:
    yield vertex
    for child in vertex.below:
        if isinstance(child, Vertex):
            yield from _vertices(child)


def _rebuilt(vertex: Vertex, slots: Mapping[tuple[str, str], int]) -> Vertex:
    below = tuple(
        _rebuilt(child, slots) if isinstance(child, Vertex) else child for child in vertex.below
    )
    return replace(vertex, below=below, inc_slots=slots.get((vertex.level, vertex.name), 0))


def _slots_of_level(spec: Any, names: Collection[str], where: str) -> dict[str, int]:
    """Return the slots of a level's switches by name."""
    if not isinstance(spec, dict):
        return dict.fromkeys(names, _checked(spec, where))
    found: dict[str, int] = {}
    for text, value in spec.items():
        place = f"{where}.{text}"
        members = _expanded(str(text), place)
        check_known(members, names, f"{where}: ")
        for name in members:
            if name in found:
                raise ConfigError(f"{place}: {name!r} has slots twice; give them once")
            found[name] = _checked(value, place)
    return found


def _expanded(text: str, where: str) -> list[str]:
    try:
        return expand_hostlist(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _checked(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(
            f"{where}={value!r} is not an integer; write the number of jobs that the switch can "
            "aggregate for at a time"
        )
    if not 0 <= value <= MAX_SLOTS:
        raise ConfigError(f"{where}={value}, must be from 0 to {MAX_SLOTS}")
    return value
