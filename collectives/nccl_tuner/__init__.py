"""NCCL tuner plugin that permits switches by a rank's table of decisions."""
