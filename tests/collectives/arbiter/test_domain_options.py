"""Switches of a domain: their options, and which of them a job uses."""

from __future__ import annotations

import pytest

from presage.collectives.arbiter.domain import one_switch, parse_switch, topology_domain
from presage.collectives.core.costs import Link
from presage.errors import ConfigError
from presage.schedulers.core.topology import Topology, Vertex


def vertex(level, name, *below, slots=0):
    return Vertex(name, level, below, inc_slots=slots)


def tree():
    nodes = [vertex("node", f"n{i}", i) for i in range(4)]
    racks = [vertex("rack", "r0", *nodes[:2], slots=1), vertex("rack", "r1", *nodes[2:], slots=2)]
    root = vertex("spine", "s", *racks, slots=3)
    return Topology(root, {"node": 1.0, "rack": 2.0, "spine": 3.0})


def specs(*names):
    return [parse_switch(f"{name}=127.0.0.1:7200") for name in names]


def test_a_switch_has_an_address_slots_and_the_link_of_its_jobs():
    found = parse_switch("tor=10.0.0.1:7200,slots=2,mbit=80,latency_us=50", "secret")
    assert (found.name, found.host, found.port, found.slots) == ("tor", "10.0.0.1", 7200, 2)
    assert found.link == Link(50e-6, 10e6)
    assert parse_switch("rack/r1=h:1", slots_of={"rack/r1": 4}).slots == 4
    assert parse_switch("a=[::1]:1").host == "::1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tor=h:1,slots=x", "slots=x, must be a whole number from 1 to 256"),
        ("tor=h:1,slots=300", "slots=300, must be"),
        ("tor=h:1,mbit=0", "mbit=0, must be a finite number above 0"),
        ("tor=h:1,mbit=inf", "mbit=inf, must be a finite number above 0"),
        ("tor=h:1,mbit=fast", "mbit=fast, must be"),
        ("tor=h:1,latency_us=-1", "latency_us=-1, must be a finite number of at least 0"),
        ("tor\n=h:1", "is not NAME=HOST:PORT"),
    ],
)
def test_an_error_repeats_the_words_of_the_option(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_switch(text)


@pytest.mark.parametrize(
    "text",
    ["", "tor", "tor=h", "=h:1", "tor=h:0", "tor=h:70000", "tor=h:1,slots=0", "tor=h:1,slots=x",
     "tor=h:1,colour=red", "tor=h:1,mbit=0", "tor=h:1,latency_us=nan", "tor=h:1,mbit=nan"],
)  # fmt: skip
def test_a_malformed_switch_is_refused(text):
    with pytest.raises(ConfigError, match="--switch"):
        parse_switch(text)


def test_with_one_switch_every_job_uses_it():
    assert one_switch(specs("tor")[0]).switches_of(["", ""]) == ("tor",)


def test_a_job_uses_the_switches_between_its_nodes_the_topmost_first():
    domain = topology_domain(tree(), specs("rack/r0", "rack/r1", "spine/s"))
    assert domain.switches_of(["n0", "n1"]) == ("rack/r0",)
    found = domain.switches_of(["n0", "n1", "n2", "n3"])
    assert found[0] == "spine/s" and set(found[1:]) == {"rack/r0", "rack/r1"}
    assert domain.switches_of(["n0"]) == ()
    assert domain.switches_of(["n0", "unknown"]) == ()


def test_switches_and_topology_must_name_each_other():
    with pytest.raises(ConfigError, match="no such switch"):
        topology_domain(tree(), specs("rack/r0", "rack/r1", "spine/s", "rack/r9"))
    with pytest.raises(ConfigError, match="spine/s"):
        topology_domain(tree(), specs("rack/r0", "rack/r1"))
