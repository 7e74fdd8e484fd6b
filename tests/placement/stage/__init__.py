"""Tests of the stages of the placement policy ``learnt``."""
