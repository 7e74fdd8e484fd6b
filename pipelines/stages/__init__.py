"""DVC stages: one file each, run as ``python -m presage.pipelines.stages.NAME``."""
