"""Limits that bound the cost of one request; those of single values are in ``wire_values``."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# With HTTP/2's default of 16 KiB a message of a thousand feature rows has fifty frames.
FRAME_BYTES = 1024 * 1024
MAX_ROWS = 4096  # placements, or members of all co-locations
MAX_MEMBERS = 64
MAX_LEVELS = 16
OPS_A_ROW = 32  # operator rows of a typical job
# Features cost about 0.1 us per operator row and prediction.
MAX_OP_ROW_VISITS = 1_000_000
