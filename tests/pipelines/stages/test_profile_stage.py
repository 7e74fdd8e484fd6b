"""What the stage `profile` says at its end."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from presage.pipelines.profiling.campaign import campaign
from presage.pipelines.profiling.campaign.campaign_progress import Progress
from presage.pipelines.stages import profile

CAMPAIGN = Path(__file__).parents[3] / "data/profiles/cpu-2-llm"
WARNING = "warning: the budget was enough for"


def said_of(end, tmp_path, monkeypatch, capsys, *flags):
    """Return what the stage writes to stderr about a campaign that ended so."""
    monkeypatch.setattr(profile, "_reporter", nullcontext)
    monkeypatch.setattr(campaign, "run_campaign", lambda *_, **__: end)
    profile.main([str(tmp_path / "out"), f"--params={tmp_path / 'absent.yaml'}", *flags])
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("solo", "flags", "is_warned"),
    [
        (3, [], True),
        (1, ["--budget-s=20"], True),
        (10, [], False),
        (3, ["--jobs=3"], False),
        (3, ["--anchor"], False),
    ],
)
def test_a_budget_for_few_jobs_is_warned_of(tmp_path, monkeypatch, capsys, solo, flags, is_warned):
    end = Progress("done", "", solo, colocated=0, failed=0, elapsed_s=150.0, left_s=0.0)

    said = said_of(end, tmp_path, monkeypatch, capsys, *flags)

    assert f"measured {solo} jobs solo" in said
    assert (WARNING in said) is is_warned
    assert "1 jobs" not in said.partition(WARNING)[2]


def test_jobs_of_earlier_runs_count(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "out"
    shutil.copytree(CAMPAIGN, folder)
    end = Progress("done", "", solo=2, colocated=0, failed=0, elapsed_s=9.0, left_s=0.0)

    assert WARNING not in said_of(end, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(("load", "is_warned"), [(0.05, False), (0.3, True)])
def test_a_busy_machine_is_warned_of(tmp_path, monkeypatch, capsys, load, is_warned):
    end = Progress(
        "done", "", 50, colocated=0, failed=0, elapsed_s=150.0, left_s=0.0, foreign_load=load
    )

    said = said_of(end, tmp_path, monkeypatch, capsys)

    assert ("other programs used 30% of the device" in said) is is_warned
