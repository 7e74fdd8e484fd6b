"""Phases of a training job: when its AllReduces start, learnt from those it has run."""
