"""Policies by name: what the command line offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from presage.schedulers.fifo import Fifo
from presage.schedulers.policy import Policy
from presage.schedulers.shortest_first import ShortestFirst

POLICIES: Mapping[str, Callable[[], Policy]] = {"fifo": Fifo, "sjf": ShortestFirst}
