"""Operators and features of a job."""

from __future__ import annotations

import json

from presage.cli.output.derived.llm_serving import serving_lines
from presage.cli.output.json_output import print_json
from presage.features.columns.schema import columns, matrix
from presage.features.device.device import Device
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.serving.client.job_features import to_json
from presage.system.text.terminal import Console, Table, print_table, say, styled
from presage.system.text.units import quantity


def print_features(job: JobFeatures, device: Device, feature_set: str, *, as_json: bool) -> None:
    """Print the operators of a job, and its feature values on a device."""
    if as_json:
        print_json(json.loads(to_json(job)))
        return
    print_table(_operator_table(job))
    print_table(_feature_table(job, device, feature_set))
    roofline_s = matrix([Placement(job, device)])[0, columns("full").index("roofline_s")]
    say(
        f"{job.parameters:,} parameters, {quantity(job.peak_live_bytes, 'bytes')} of live tensors, "
        f"roofline step time {quantity(roofline_s, 'seconds')} on {device.kind}"
    )
    for line in serving_lines(job, device):
        say(line)
    unknown = sum(row.count for row in job.op_stats if row.kind == "Other")
    if unknown:
        text = f"{unknown} operators are of unknown kind: the job is out of domain"
        Console().print(styled(text, "yellow"))


def _operator_table(job: JobFeatures) -> Table:
    table = Table(title=f"{job.job.name}, one step at batch size {job.job.batch_size}")
    for name in ("kind", "phase", "operators", "largest input", "GFLOP", "MB moved"):
        table.add_column(name, justify="left" if name in ("kind", "phase") else "right")
    by_kind: dict[tuple[str, str], list[float]] = {}
    for row in job.op_stats:
        sums = by_kind.setdefault((row.kind, row.phase), [0.0, 0.0, 0.0, 0.0])
        sums[0] += row.count
        sums[1] = max(sums[1], row.input_elements_max)
        sums[2] += row.flops
        sums[3] += row.bytes_moved
    by_bytes_moved = sorted(by_kind.items(), key=lambda item: -item[1][3])
    for (kind, phase), (count, largest, flops, moved) in by_bytes_moved:
        figures = (f"{count:.0f}", f"{largest:,.0f}", f"{flops / 1e9:,.3f}", f"{moved / 1e6:,.2f}")
        table.add_row(kind, phase, *figures)
    return table


def _feature_table(job: JobFeatures, device: Device, feature_set: str) -> Table:
    table = Table(title=f"Feature set {feature_set!r} on {device.kind}")
    table.add_column("column")
    table.add_column("value", justify="right")
    values = matrix([Placement(job, device)], feature_set)[0]
    for name, value in zip(columns(feature_set), values, strict=True):
        table.add_row(name, f"{float(value):,.6g}")
    return table
