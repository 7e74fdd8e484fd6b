"""Samplers of device utilization and memory: CPU counters, NVML, GPM, DCGM."""
