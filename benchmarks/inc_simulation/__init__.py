"""Rules that share a switch, in the phase simulator: docs/benchmarks/inc_simulation.md."""
