"""Reasons of decisions in words, each with the requirement that it follows from."""

from __future__ import annotations

from presage.collectives.core.view import Reason

REASON_TEXTS = {
    Reason.OUTSIDE_WINDOW: "ring: no decision was made for this number, so all ranks use ring",
    Reason.NO_OTHER_ARRIVAL: "switch: no other job's AllReduce arrives during its run (I2)",
    Reason.IN_USE: "ring: another job uses the switch when it arrives (I1)",
    Reason.HIGHEST_SCORE: "switch: it has the highest score of those that arrive soon (I3)",
    Reason.LOWER_SCORE: "ring: another AllReduce that arrives soon has a higher score (I3)",
    Reason.RESERVED: "switch: its arrivals cannot be predicted, and its score is highest (I3)",
    Reason.SINGLE_RANK: "ring: the job has one rank",
    Reason.REVOKED: "ring: the decision is being withdrawn from this job",
}
# For bars of the picture.
SHORT_REASONS = {
    Reason.OUTSIDE_WINDOW: "-",
    Reason.NO_OTHER_ARRIVAL: "I2",
    Reason.IN_USE: "I1",
    Reason.HIGHEST_SCORE: "I3",
    Reason.LOWER_SCORE: "I3",
    Reason.RESERVED: "soon",
    Reason.SINGLE_RANK: "N=1",
    Reason.REVOKED: "rev",
}
