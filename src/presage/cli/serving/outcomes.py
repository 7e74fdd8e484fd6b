"""``presage outcomes``: outcomes of jobs that clients reported to servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import add_command, command, group
from presage.cli.options.common import Json
from presage.cli.options.server import ServerOptions
from presage.cli.serving.options import Logs, chosen_logs

MAX_OUTCOMES = 256  # per call

app = group(
    "Report outcomes of jobs, copy them, convert them into training data, or withdraw them.",
    examples="""
    presage outcomes ingest
    presage outcomes report data/profiles/anchor --server 127.0.0.1:50051
    presage outcomes withdraw --reported-by faulty-node
    """,
)


@command(
    examples="""
    presage outcomes ingest
    presage outcomes ingest /var/lib/presage/outcomes --to data/outcomes/tables
    """
)
def ingest(
    logs: Logs = None,
    to: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of tables to write. It is replaced.")
    ] = Path("data/outcomes/tables"),
    profiles: Annotated[
        Path, typer.Option(metavar="DIR", help="Campaign folders, for known jobs and devices.")
    ] = Path("data/profiles"),
    pretrained: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="data/pretrained, if it exists",
            help="Pretrained networks, for known devices.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert all reported outcomes into tables that the next `dvc repro` trains on.

    Repeating the command gives the same tables. Invalid outcomes are written to quarantine.jsonl
    in the same folder, with reasons.
    """
    from presage.cli.output.tables_written import print_ingested
    from presage.pipelines.reported.recency import read_recency
    from presage.pipelines.reported.withdrawn import read_withdrawals
    from presage.pipelines.stages.ingest import PRETRAINED
    from presage.pipelines.stages.ingest import ingest as ingest_logs

    done = ingest_logs(
        chosen_logs(logs),
        to,
        recency=read_recency(),
        withdrawals=read_withdrawals(),
        profiles=profiles,
        pretrained=pretrained or (PRETRAINED if PRETRAINED.is_dir() else None),
    )
    print_ingested(done, to, as_json=as_json)


@command(
    examples="""
    presage outcomes withdraw --key cluster-a/job-17/1
    presage outcomes withdraw /var/lib/presage/outcomes --reported-by faulty-node
    """
)
def withdraw(
    logs: Logs = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Idempotency key of an outcome. Repeat for several."),
    ] = None,
    reported_by: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Caller whose outcomes to withdraw, as in the log."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Withdraw reported outcomes that are wrong.

    They stay in the log, but train no release. A running server removes them from the offsets of
    its forecasts at its next check of the log.
    """
    from presage.cli.output.json_output import print_json
    from presage.errors import ConfigError
    from presage.serving.outcomes.outcome_log import withdraw as withdraw_from
    from presage.system.text.terminal import say

    if not (key or reported_by):
        raise ConfigError("no outcome is selected; give --key or --reported-by")
    found = chosen_logs(logs)
    count = sum(withdraw_from(log, keys=key or (), reported_by=reported_by or ()) for log in found)
    if as_json:
        print_json({"withdrawn": count})
    else:
        say(f"withdrew {count:,} outcomes from {len(found)} logs")


@command(
    examples="""
    presage outcomes copy postgresql://presage@db/presage data/outcomes/shared.db
    """
)
def copy(
    source: Annotated[
        str, typer.Argument(metavar="LOG", help="Outcome log: a file or a postgresql:// URL.")
    ],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Log to add to; it is created if missing.")
    ],
    as_json: Json = False,
) -> None:
    """Copy outcomes and withdrawals to another log, which keeps what it has.

    The source may be in use. Repeating the command adds what is new.
    """
    from presage.cli.output.json_output import print_json
    from presage.serving.outcomes.copied_log import copy_log
    from presage.system.files.log_address import log_address, log_name
    from presage.system.text.terminal import say

    copied = copy_log(log_address(source), log_address(target))
    if as_json:
        print_json({"copied": copied})
    else:
        say(f"copied {copied:,} outcomes to {log_name(log_address(target))}")


@command(examples="presage outcomes report data/profiles/anchor --server 127.0.0.1:50051")
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Tables that `presage profile` measured.")
    ],
    server: ServerOptions,
    as_json: Json = False,
) -> None:
    """Report the runs of a campaign to a server as outcomes of its release.

    The server corrects its forecasts by them. Repeating the command changes nothing.
    """
    from presage.cli.output.json_output import print_json
    from presage.cli.serving.campaign_outcomes import campaign_outcomes
    from presage.features.tables.campaign import read_campaign
    from presage.system.text.terminal import say

    with server.connected() as client:
        info = client.release()
        outcomes = campaign_outcomes(read_campaign(folder), info.release_id, info.devices)
        batches = [outcomes[i : i + MAX_OUTCOMES] for i in range(0, len(outcomes), MAX_OUTCOMES)]
        done = [client.report(batch) for batch in batches]
    accepted, known = sum(one.accepted for one in done), sum(one.duplicates for one in done)
    refused = [error for one in done for error in one.refused.values()]
    if as_json:
        print_json({"accepted": accepted, "duplicates": known, "refused": len(refused)})
        return
    say(f"reported {accepted:,} outcomes of release {info.release_id}; {known:,} were known")
    for error in refused:
        say(f"refused: {error}")


add_command(app, ingest)
add_command(app, copy)
add_command(app, report)
add_command(app, withdraw)
