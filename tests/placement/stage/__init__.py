"""Tests of the stages of the learnt placement policy."""
