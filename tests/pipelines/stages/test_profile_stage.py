"""What the stage `profile` says at its end."""

from contextlib import nullcontext

import pytest

from presage.pipelines.profiling.campaign import campaign
from presage.pipelines.profiling.campaign.campaign_progress import Progress
from presage.pipelines.stages import profile

WARNING = "warning: the budget was enough for"


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
    monkeypatch.setattr(profile, "_reporter", nullcontext)
    monkeypatch.setattr(campaign, "run_campaign", lambda *_, **__: end)

    profile.main([str(tmp_path / "out"), f"--params={tmp_path / 'absent.yaml'}", *flags])

    said = capsys.readouterr().err
    assert f"measured {solo} jobs solo" in said
    assert (WARNING in said) is is_warned
    assert "1 jobs" not in said.partition(WARNING)[2]
