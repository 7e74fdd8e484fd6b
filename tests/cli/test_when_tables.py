"""Table of predicted starts and ends, and the page's sentence about them."""

from __future__ import annotations

import math

import pytest

from presage.cli.scheduling.cluster.when.options import VariantOptions
from presage.cli.scheduling.cluster.when.when_tables import (
    basis_lines,
    interval_text,
    print_answers,
    time_text,
    variant_text,
)
from presage.schedulers.live.ui.figures import start_text
from presage.schedulers.v1 import cluster_pb2 as pb


def quantiles(low_s, median_s, high_s):
    return pb.TimeQuantiles(low_s=low_s, median_s=median_s, high_s=high_s)


PREDICTED = pb.WhatIfAnswer(
    job_id="waits", verdict="predicted", start=quantiles(300, 500, 4_000),
    end=quantiles(4_000, 9_000, math.inf), start_probabilities=[0.5, 1.0],
)  # fmt: skip
UNKNOWN = pb.WhatIfAnswer(
    job_id="behind", verdict="unknown", reason="it depends on a job",
    variant=pb.WhatIfVariant(gpus=2, policy="sjf"),
)  # fmt: skip
FOUND = pb.WhatIfResponse(
    answers=[PREDICTED, UNKNOWN], samples=50, horizon_s=86_400, assumptions=["nothing"],
    run_times={"its forecast": 2, "none: it has no forecast": 1},
)  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "now"), (59, "59 s"), (500, "8.3 min"), (1e5, "28 h"), (2e5, "2.3 d"),
     (-300, "5.0 min ago"), (math.inf, "later")],
)  # fmt: skip
def test_times_have_a_readable_unit(seconds, text):
    assert time_text(seconds) == text


def test_intervals_have_the_unit_of_their_end():
    assert interval_text(quantiles(0, 1, 4_000)) == "0 to 67 min"
    assert interval_text(quantiles(300, 500, math.inf)) == "from 5.0 min"
    assert interval_text(quantiles(5, 5, 5)) == ""


def test_each_answer_is_a_row_and_reasons_follow(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")

    print_answers(FOUND, ["10m", "1h"])

    out = capsys.readouterr().out
    assert "8.3 min" in out
    assert "from 67 min" in out
    assert "behind, 2 devices, sjf: start unknown, because it depends on a job." in out


def test_the_basis_is_printed():
    assert list(basis_lines(FOUND))[1:] == [
        "Median and 80 % interval of 50 simulated futures, each of at most 1 days; times from now.",
        "Run times: 2 by its forecast, 1 unknown: it has no forecast.",
        "Assumed: nothing.",
    ]


def test_each_option_is_a_variant_next_to_the_request():
    found = list(VariantOptions(gpus=[1, 2], kinds=["h20"], shares=[0.5]).messages())

    assert [variant_text(one) for one in found] == [
        "as requested", "1 device", "2 devices", "h20", "share 50 %"
    ]  # fmt: skip
    assert list(VariantOptions().messages()) == []


def test_the_page_has_the_start_of_a_waiting_job():
    assert start_text(PREDICTED) == "starts in 8 min 20 s (80 %: 5 min to 1 h 7 min)"
    assert start_text(UNKNOWN) == "start unknown"
    assert start_text(None) == ""
    late = pb.WhatIfAnswer(verdict="predicted", start=quantiles(5, math.inf, math.inf))
    assert start_text(late) == "starts after more than a week"
