"""Switches of a domain, and which of them aggregate for a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from presage.collectives.core.costs import Link
from presage.errors import ConfigError
from presage.schedulers.core.capacity.job_switches import job_switches, switches
from presage.schedulers.core.topology import Topology
from presage.system.text.address import check_address

# Slowest link of the jobs of a switch, unless its option names another one: 100 Gbit/s, 5 us.
DEFAULT_LINK = Link(5e-6, 12.5e9)
_KEYS = "slots, mbit, latency_us"


@dataclass(frozen=True, slots=True)
class SwitchSpec:
    """Switch of the domain.

    Attributes
    ----------
    name, host, port : str, str, int
        Unique name, and address for ranks and arbiter.
    slots : int
        Number of jobs that it aggregates for at a time.
    link : Link
        Slowest link between the ranks of a job at this switch.
    token : str
        Token of the switch; "" for none.
    """

    name: str
    host: str
    port: int
    slots: int = 1
    link: Link = DEFAULT_LINK
    token: str = ""


SwitchesOf = Callable[[Sequence[str]], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Domain:
    """Switches with one arbiter.

    Attributes
    ----------
    switches : tuple of SwitchSpec
        At least one, with unique names.
    switches_of : callable
        Returns the names of the switches of a job with ranks on these nodes, the topmost first; ()
        if no switches connect them.
    """

    switches: tuple[SwitchSpec, ...]
    switches_of: SwitchesOf

    def __post_init__(self) -> None:
        names = [switch.name for switch in self.switches]
        if not names or len(set(names)) != len(names):
            raise ConfigError("switches need unique names, and there must be at least one")

    def __getitem__(self, name: str) -> SwitchSpec:
        return next(switch for switch in self.switches if switch.name == name)

    def link(self, names: Sequence[str]) -> Link:
        """Return the slowest link of a job at these switches."""
        links = [self[name].link for name in names]
        return Link(
            max(link.latency_s for link in links),
            min(link.bandwidth_bytes_per_s for link in links),
        )


def one_switch(switch: SwitchSpec) -> Domain:
    """Return a domain in which every job is at the only switch, whatever its nodes."""
    return Domain((switch,), lambda _nodes: (switch.name,))


def topology_domain(topology: Topology, specs: Sequence[SwitchSpec]) -> Domain:
    """Return a domain in which a job uses the switches at which the paths from its nodes meet.

    Raises
    ------
    ConfigError
        A switch is not in the topology, or one of the topology has no address.
    """
    known = {switch.name for switch in switches(topology)}
    given = {spec.name for spec in specs}
    if unknown := given - known:
        raise ConfigError(
            f"--switch {min(unknown)}: the topology has no such switch with slots; it has "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    if missing := known - given:
        raise ConfigError(f"the topology has the switch {min(missing)!r}; give --switch for it")

    def switches_of(nodes: Sequence[str]) -> tuple[str, ...]:
        try:
            found = job_switches(topology, nodes)
        except ValueError:  # of an unknown node
            return ()
        return tuple(switch.name for switch in reversed(found))

    return Domain(tuple(specs), switches_of)


def parse_switch(
    text: str, token: str = "", slots_of: Mapping[str, int] | None = None
) -> SwitchSpec:
    """Return the switch of ``NAME=HOST:PORT[,slots=N][,mbit=M][,latency_us=L]``.

    ``slots_of`` has the number of slots of switches whose text has none; otherwise it is 1.

    Raises
    ------
    ConfigError
        The text has another form.
    """
    name, _, rest = text.partition("=")
    address, *words = rest.split(",")
    where = f"--switch {text!r}"
    otherwise = f"{where} is not NAME=HOST:PORT[,slots=N][,mbit=M][,latency_us=L]"
    check_address(address, where, otherwise)
    host, _, port = address.rpartition(":")
    values = dict(word.partition("=")[::2] for word in words)
    if unknown := set(values) - set(_KEYS.split(", ")):
        raise ConfigError(f"{where}: unknown key {min(unknown)!r}; use {_KEYS}")
    if not name or not name.isprintable():
        raise ConfigError(otherwise)
    slots_text = values.get("slots", str((slots_of or {}).get(name, 1)))
    if not (slots_text.isdecimal() and len(slots_text) < 4 and 1 <= int(slots_text) <= 256):
        raise ConfigError(f"{where}: slots={slots_text}, must be a whole number from 1 to 256")
    latency_us, mbit = _number(values, "latency_us", where), _number(values, "mbit", where)
    link = Link(
        DEFAULT_LINK.latency_s if latency_us is None else latency_us / 1e6,
        DEFAULT_LINK.bandwidth_bytes_per_s if mbit is None else mbit * 1e6 / 8,
    )
    return SwitchSpec(name, host.strip("[]"), int(port), int(slots_text), link, token)


def _number(values: Mapping[str, str], key: str, where: str) -> float | None:
    """Return the value of a key; None if it is not given."""
    if key not in values:
        return None
    try:
        found = float(values[key])
    except ValueError:
        found = math.nan
    is_valid = found > 0 or (found == 0 and key == "latency_us")
    if not (is_valid and math.isfinite(found)):
        least = "of at least 0" if key == "latency_us" else "above 0"
        raise ConfigError(f"{where}: {key}={values[key]}, must be a finite number {least}")
    return found
