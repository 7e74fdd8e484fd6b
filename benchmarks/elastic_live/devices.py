"""Devices of benchmarks/elastic_live, and the batch of its jobs."""

from __future__ import annotations

KIND, NODES, DEVICES_OF_A_NODE, MEMORY_GIB = "t4", 2, 2, 2.0
DEVICES = NODES * DEVICES_OF_A_NODE
BATCH = 24  # samples of a step of the tiny model; divisible by every number of workers
STARTUP_S = 15.0  # from the start of a worker's process until it joins its job

Size = tuple[int, int]  # devices, nodes
