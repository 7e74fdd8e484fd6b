"""Reading of published files, and of folders of our own tables, as campaigns.

Files are recognized by their columns, whatever their name; the source's importer reads them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pyarrow.parquet as pq

from presage.errors import TableError
from presage.features.tables.campaign import Campaign, read_campaign
from presage.features.tables.schemas import CAMPAIGN_TABLES
from presage.pipelines.importers.import_run import Summary, import_source
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.importers.published_file import UNREADABLE, read_csv

log = logging.getLogger(__name__)
MAX_REASONS = 8  # maximum number of logged reasons for skipped rows


@dataclass(frozen=True, slots=True)
class Layout:
    """A kind of published file: its distinctive columns, and the file name of its importer."""

    source: str
    name: str
    columns: frozenset[str]


LAYOUTS = tuple(
    Layout(source, name, frozenset(columns.split(",")))
    for source, name, columns in (
        ("timm", "timm_step_time.parquet", "step_time_ms,img_size,layout"),
        ("torchvision", "torchvision_step_time.csv", "median_ms,batch_per_gpu,n_gpus"),
        ("gpumemnet", "memory_a100.csv", "faketensor_final_mib,max_gpu_mem_mib"),
        ("gpumemnet", "mlp_utilization.csv", "Activations-Params,Avg GPUTL"),
        ("gavel", "pairs.csv", "job_a,job_b,iso_a,co_a"),
        ("gavel", "isolated.csv", "steps_per_sec,num_gpus,placement"),
        ("lucid", "pairs.csv", "speed1,speed2,model1,model2"),
        ("lucid", "solo.csv", "speed,gpu_util,amp,dataset"),
        ("parvagpu", "parvagpu_tidy.csv", "Mig instance,Workload Number,Throughput"),
        ("miso", "mig_isolated_step_time.csv", "mig_slice,step_time_median_s"),
        ("pollux", "", "local_bsz,step_time,sync_time"),  # the file name contains the model
    )
)
# Files whose solo runs are read for the other side's co-locations: all rows, or those in which a
# column is 1.
SOLO_COLUMNS = {"solo.csv": None, "isolated.csv": None, "parvagpu_tidy.csv": "Workload Number"}


def read_tables(
    paths: Sequence[Path], graphs: GraphCache, *, solo_sources: Sequence[Path] = ()
) -> list[Campaign]:
    """Read files or folders as campaigns, one for each source and folder of tables.

    Parameters
    ----------
    paths : sequence of Path
        Files in a layout of ``LAYOUTS``, and folders that ``presage profile`` or ``presage
        import`` wrote.
    solo_sources : sequence of Path
        Files of which only the solo runs are read.

    Raises
    ------
    TableError
        A path does not exist or has no known layout, or its importer rejects it.
    """
    campaigns = [read_campaign(path) for path in paths if _is_campaign(path)]
    published = [(path, _layout(path)) for path in paths if not _is_campaign(path)]
    sources = {layout.source for _, layout in published}
    solo = [(path, _layout(path)) for path in solo_sources if not _is_campaign(path)]
    for source in sorted(sources):
        with TemporaryDirectory(prefix="presage-benchmark-") as folder:
            files, tables = Path(folder) / "files", Path(folder) / "tables"
            given = {
                _link(path, files, layout): path
                for path, layout in published
                if layout.source == source
            }
            for path, layout in solo:
                if layout.source == source and layout.name in SOLO_COLUMNS:
                    _link_single(path, files, layout)
            try:
                summary = import_source(source, files, tables, graphs=graphs)
            except TableError as error:
                raise TableError(_by_name(str(error), given, files)) from error
            _log_skipped(summary)
            campaigns.append(read_campaign(tables))
    return campaigns


def refuse_another_source(train: Sequence[Path], test: Sequence[Path]) -> None:
    """Raise if the training and test tables have different sources.

    Raises
    ------
    TableError
        A path of ``test`` has a source that no path of ``train`` has.
    """
    known = {_source(path) for path in train}
    for path in test:
        if (source := _source(path)) not in known:
            raise TableError(
                f"{path}: has the columns of {source}, but --train has those of "
                f"{', '.join(sorted(known))}; use files of one source on both sides"
            )


def _source(path: Path) -> str:
    return "a folder of tables" if _is_campaign(path) else _layout(path).source


def _by_name(text: str, given: Mapping[Path, Path], files: Path) -> str:
    """Replace the names of links in an importer's message by those of the given files."""
    for link, path in given.items():
        text = text.replace(str(link), str(path))
    return text.replace(str(files), ", ".join(map(str, given.values())))


def _log_skipped(summary: Summary) -> None:
    """Log which rows are not scored, and why."""
    reasons = Counter(summary.skipped) + Counter(summary.notes)
    for reason, rows in reasons.most_common(MAX_REASONS):
        log.warning("%s: %d x %s", summary.source, rows, reason)
    if (others := len(reasons) - MAX_REASONS) > 0:
        log.warning("%s: %d more reasons; `presage import` lists all", summary.source, others)


def _is_campaign(path: Path) -> bool:
    return path.is_dir() and all((path / f"{name}.parquet").is_file() for name in CAMPAIGN_TABLES)


def _link(path: Path, folder: Path, layout: Layout) -> Path:
    """Link the file under the name that its importer expects, in the first free folder."""
    name = layout.name + (".gz" if path.suffix == ".gz" else "") if layout.name else path.name
    link = _free(folder, name)
    link.symlink_to(path.resolve())
    return link


def _link_single(path: Path, folder: Path, layout: Layout) -> None:
    """Write the solo rows of a file under the name that its importer expects."""
    processes = SOLO_COLUMNS[layout.name]
    if processes is None:
        _link(path, folder, layout)
        return
    rows = read_csv(path, {processes: int})
    if (solo := rows[rows[processes] == 1]).size:
        solo.to_csv(_free(folder, layout.name), index=False)


def _free(folder: Path, name: str) -> Path:
    numbered = (folder / str(number) / name for number in count())
    free = next(path for path in numbered if not path.exists())
    free.parent.mkdir(parents=True, exist_ok=True)
    return free


def _layout(path: Path) -> Layout:
    found = _columns(path)
    for layout in LAYOUTS:
        if layout.columns <= found:
            return layout
    known = "; ".join(f"{one.source}: {', '.join(sorted(one.columns))}" for one in LAYOUTS)
    raise TableError(
        f"{path}: columns {', '.join(sorted(found)[:8])} are of no known source; "
        f"use a folder of tables, or a file with those of {known}"
    )


def _columns(path: Path) -> frozenset[str]:
    if not path.exists():
        raise TableError(
            f"{path}: no such file; docs/pipeline/importing.md lists the supported files"
        )
    try:
        if path.suffix == ".parquet":
            return frozenset(pq.read_schema(path).names)
        return frozenset(map(str, pd.read_csv(path, nrows=0).columns))
    except UNREADABLE as error:
        raise TableError(
            f"{path}: neither a folder of tables, nor CSV, nor parquet ({str(error)[:80]}); "
            "docs/pipeline/importing.md lists the supported files"
        ) from error
