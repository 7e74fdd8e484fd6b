"""DVC stage: logs of reported outcomes -> a campaign folder, and quarantined rows.

The folder is a function of the logs, the jobs and devices of campaigns, and params.yaml: reading
them again, or in another order, gives the same bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from presage.features.device.device import Device, known_device
from presage.features.job.identity import graph_digest, job_digest, merge_op_stats
from presage.features.job.job_description import JobFeatures
from presage.features.tables import schemas as tables
from presage.features.tables.campaign import read_campaign
from presage.pipelines.experiment import workspace
from presage.pipelines.pretraining.pretrained_networks import read_pretrained
from presage.pipelines.reported.outcome_tables import STEP, TABLES, learnt_columns, outcome_tables
from presage.pipelines.reported.plausibility import Fault, implausible
from presage.pipelines.reported.recency import Recency, read_recency
from presage.pipelines.reported.reported_outcomes import Quarantined, Reported, read_logs
from presage.pipelines.reported.withdrawn import Withdrawal, read_withdrawals, withdrawn
from presage.pipelines.stages.stage import replace_folder, run_stage
from presage.system.files.atomic_file import write_atomically
from presage.system.files.data_folder import data_folder
from presage.system.files.log_address import LogAddress, log_address
from presage.system.text.progress import training_progress

LOGS, FOLDER = Path("data/outcomes"), Path("data/outcomes/tables")
PROFILES, PRETRAINED = Path("data/profiles"), Path("data/pretrained")
_ROW_KEY = ["log", "position", "idempotency_key", "reported_by"]
QUARANTINE = "quarantine.jsonl"
OUTPUT_NAMES = (QUARANTINE, *(f"{name}.parquet" for name in TABLES))


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Numbers of ingested rows.

    Attributes
    ----------
    outcomes : int
        Rows of the logs.
    duplicates : int
        Rows that repeat another one.
    failed : int
        Accepted rows of jobs that failed.
    unused : int
        Accepted rows that are not used in training, because they have only a runtime, or no step
        time of a co-located job. They count in drift detection.
    rows : mapping of str to int
        Rows of each written table.
    quarantined : mapping of str to int
        Unusable rows, by the rule that they violate.
    """

    outcomes: int
    duplicates: int
    failed: int
    unused: int
    rows: dict[str, int]
    quarantined: dict[str, int]


def ingest(
    paths: Sequence[LogAddress],
    target: Path = FOLDER,
    *,
    recency: Recency,
    withdrawals: Sequence[Withdrawal] = (),
    profiles: Path = PROFILES,
    pretrained: Path | None = PRETRAINED,
) -> IngestResult:
    """Write the tables of all outcomes in the logs to ``target``, replacing its content.

    Parameters
    ----------
    paths : sequence of Path or str
        Logs, to which servers may be appending, and folders of logs (``*.db``).
    target : Path
        Folder to write.
    recency : Recency
        Weights by age.
    withdrawals : sequence of Withdrawal
        Outcomes to exclude.
    profiles, pretrained : Path
        Campaign folders and pretrained networks, whose devices are known without a data sheet. A
        job that a campaign has measured keeps its name.

    Raises
    ------
    OutcomeLogError
        A log does not exist or cannot be read.
    TableError
        ``target`` has other files or cannot be written, or a campaign is corrupt.
    """
    logs = find_logs(paths)
    devices, jobs = _read_known(profiles, pretrained) if logs else ({}, {})
    with training_progress("outcomes"):  # without a total, which is unknown in advance
        reported = read_logs(logs, lambda kind: known_device(kind, devices), jobs)
        excluded = withdrawn(reported.rows, withdrawals)
        invalid = implausible(reported.rows, reported.jobs, reported.devices)
        faults = [first or second for first, second in zip(excluded, invalid, strict=True)]
        quarantined = sorted(
            reported.quarantined + _quarantine(reported, faults), key=_log_position
        )
        is_valid = np.array([fault is None for fault in faults], dtype=bool)
        good = reported.rows[is_valid].reset_index(drop=True)
        data = outcome_tables(good, reported.jobs, reported.devices, recency)
        replace_folder(target, OUTPUT_NAMES, partial(_write, data, quarantined))
    failure = data["outcomes"].column("failure").to_pandas()
    return IngestResult(
        outcomes=len(reported.rows) + len(reported.quarantined) + reported.duplicates,
        duplicates=reported.duplicates,
        failed=int((failure != "").sum()),
        unused=_count_unused(data["outcomes"]),
        rows={name: table.num_rows for name, table in data.items()},
        quarantined=dict(sorted(Counter(row.rule for row in quarantined).items())),
    )


def _quarantine(reported: Reported, faults: Sequence[Fault | None]) -> list[Quarantined]:
    out = []
    for position, fault in enumerate(faults):
        if fault is not None:
            log, at, key, by = reported.rows.iloc[position][_ROW_KEY]
            out.append(Quarantined(log, int(at), key, by, *fault))
    return out


def _log_position(row: Quarantined) -> tuple[str, int]:
    return row.log, row.position


def find_logs(paths: Sequence[LogAddress]) -> list[LogAddress]:
    """Return the given logs, and the logs in folders; the default folder may not exist."""
    out: list[LogAddress] = []
    for path in paths:
        if isinstance(path, str):
            out.append(path)
        elif path.is_dir() or path in {LOGS, data_folder() / "outcomes"}:
            out += sorted(path.glob("*.db"))
        else:
            out.append(path)
    return out


def _read_known(
    profiles: Path, pretrained: Path | None
) -> tuple[dict[str, Device], dict[str, JobFeatures]]:
    """Return devices by kind and jobs by digest, of all campaigns and the pretrained networks."""
    start = read_pretrained(pretrained)
    devices = {} if start is None else start.calibrated
    jobs: dict[str, JobFeatures] = {}
    for folder in sorted(profiles.glob("*")):
        if not all((folder / f"{name}.parquet").is_file() for name in tables.CAMPAIGN_TABLES):
            continue
        campaign = read_campaign(folder)
        devices |= {device.kind: device for device in campaign.devices.values()}
        for features in campaign.jobs.values():
            graph = graph_digest(merge_op_stats(features.op_stats))
            jobs.setdefault(job_digest(features, graph), features)
    return devices, jobs


def _count_unused(outcomes: pa.Table) -> int:
    rows = outcomes.to_pandas()
    is_solo = rows["members"] == 1
    is_used = rows[STEP].notna() | (is_solo & rows[learnt_columns()].notna().any(axis=1))
    return int((~is_used & (rows["failure"] == "")).sum())


def _write(data: Mapping[str, pa.Table], quarantined: Sequence[Quarantined], folder: Path) -> None:
    lines = "".join(json.dumps(asdict(row)) + "\n" for row in quarantined)
    for name, table in data.items():
        tables.write(TABLES[name], table, folder / f"{name}.parquet")
    write_atomically(folder / QUARANTINE, lambda path: path.write_text(lines))


def main(argv: list[str] | None = None) -> None:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(description="DVC stage: reported outcomes -> a campaign")
    parser.add_argument(
        "logs", type=log_address, nargs="*", default=[LOGS], help="*.db, or their folder"
    )
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder to write")
    parser.add_argument("--profiles", type=Path, default=PROFILES, help="folder of campaigns")
    parser.add_argument("--pretrained", type=Path, help="folder of networks to fine-tune")
    args = parser.parse_args(argv)
    recency, withdrawals, root = read_recency(), read_withdrawals(), Path.cwd()
    with contextlib.chdir(workspace()):  # the logs are there, by the names in the rows
        done = ingest(
            args.logs,
            root / args.to,
            recency=recency,
            withdrawals=withdrawals,
            profiles=root / args.profiles,
            pretrained=args.pretrained and root / args.pretrained,
        )
    print(  # noqa: T201
        f"{done.outcomes} outcomes: {done.rows['executions']} solo jobs and "
        f"{done.rows['colocations']} members of co-locations in {args.to}, "
        f"{sum(done.quarantined.values())} quarantined"
    )


if __name__ == "__main__":
    run_stage(main)
