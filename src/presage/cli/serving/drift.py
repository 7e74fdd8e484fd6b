"""``presage drift``: whether outcomes still match the forecasts of the served release."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.serving.options import Logs

DRIFTED = 3  # exit status; 1 is an error, 2 a wrong command


@command(
    examples="""
    presage drift

    # Retrain when the served release has drifted, for cron
    presage drift || [ $? -ne 3 ] || dvc repro
    """
)
def drift(
    logs: Logs = None,
    release: Annotated[
        str,
        typer.Option(
            metavar="REF|DIR",
            help="Release to check, as in `presage models show`, or its folder.",
            show_default="the release that `presage serve` serves",
        ),
    ] = "",
    registry: Annotated[
        str,
        typer.Option(metavar="URI", help="Model registry.", show_default="as for `presage serve`"),
    ] = "",
    false_alarm_outcomes: Annotated[
        int, typer.Option(min=1, help="Minimum mean number of outcomes between false alarms.")
    ] = 10_000,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show every device and family, also without drift.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare reported outcomes with the forecasts of a release, and detect drift.

    Only outcomes that name the release count. The exit status is 0 without drift, 3 with drift,
    and 1 if the check failed.
    """
    from presage.cli.output.drift import print_drift
    from presage.cli.serving.drift_check import check_drift
    from presage.system.notifications.webhook import configured_webhook

    webhook = configured_webhook()
    checked = check_drift(logs, release, registry, false_alarm_outcomes)
    print_drift(checked, show_all=show_all, as_json=as_json)
    if webhook is not None:
        from presage.serving.outcomes.drift_notification import notify_of_drift
        from presage.system.files.data_folder import data_folder

        state = data_folder() / "outcomes" / "notified_drift.json"
        notify_of_drift(webhook, checked.predictor.release_id, checked.drift.rows(), state)
    raise typer.Exit(DRIFTED if any(row.drift for row in checked.drift.rows()) else 0)
