"""Published files, and folders of our own tables, as campaigns: known by their columns.

A file may have any name; what its columns are tells who published it, and its importer reads it.
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
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.importers.published_file import UNREADABLE, read_csv
from presage.pipelines.importers.run import Summary, import_source

log = logging.getLogger(__name__)
MOST_REASONS = 8  # of those that rows were left out for


@dataclass(frozen=True, slots=True)
class Layout:
    """A kind of published file: which columns give it away, and the name its importer knows."""

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
        ("pollux", "", "local_bsz,step_time,sync_time"),  # the model is in the file's own name
    )
)
# Of these a job's run alone is read, which the other side's co-locations may need: all rows, or
# those in which a column is 1.
ALONE = {"solo.csv": None, "isolated.csv": None, "parvagpu_tidy.csv": "Workload Number"}


def read_tables(
    paths: Sequence[Path], graphs: GraphCache, *, beside: Sequence[Path] = ()
) -> list[Campaign]:
    """Campaigns of files or folders, one for each source and folder of tables.

    Parameters
    ----------
    paths : sequence of Path
        Files in a layout of ``LAYOUTS``, and folders that ``presage profile`` or ``presage
        import`` wrote.
    beside : sequence of Path
        Of these only the jobs that ran alone are read.

    Raises
    ------
    TableError
        A path does not exist or is of no known layout; or its importer refuses it.
    """
    campaigns = [read_campaign(path) for path in paths if _is_campaign(path)]
    published = [(path, _layout(path)) for path in paths if not _is_campaign(path)]
    sources = {layout.source for _, layout in published}
    alone = [(path, _layout(path)) for path in beside if not _is_campaign(path)]
    for source in sorted(sources):
        with TemporaryDirectory(prefix="presage-benchmark-") as folder:
            files, tables = Path(folder) / "files", Path(folder) / "tables"
            given = {
                _link(path, files, layout): path
                for path, layout in published
                if layout.source == source
            }
            for path, layout in alone:
                if layout.source == source and layout.name in ALONE:
                    _link_alone(path, files, layout)
            try:
                summary = import_source(source, files, tables, graphs=graphs)
            except TableError as error:
                raise TableError(_by_name(str(error), given, files)) from error
            _tell_left_out(summary)
            campaigns.append(read_campaign(tables))
    return campaigns


def refuse_another_source(train: Sequence[Path], test: Sequence[Path]) -> None:
    """A table is scored by models of the same columns.

    Raises
    ------
    TableError
        A path of ``test`` is of a source that none of ``train`` is of.
    """
    known = {_source(path) for path in train}
    for path in test:
        if (source := _source(path)) not in known:
            raise TableError(
                f"{path}: has the columns of {source}, --train those of "
                f"{', '.join(sorted(known))}; give both sides files of one source"
            )


def _source(path: Path) -> str:
    return "a folder of tables" if _is_campaign(path) else _layout(path).source


def _by_name(said: str, given: Mapping[Path, Path], files: Path) -> str:
    """What an importer says of a link, said of the file that was given."""
    for link, path in given.items():
        said = said.replace(str(link), str(path))
    return said.replace(str(files), ", ".join(map(str, given.values())))


def _tell_left_out(summary: Summary) -> None:
    """Say which rows are not scored, and why: a table with one odd row is still a table."""
    reasons = Counter(summary.skipped) + Counter(summary.notes)
    for reason, rows in reasons.most_common(MOST_REASONS):
        log.warning("%s: %d x %s", summary.source, rows, reason)
    if (others := len(reasons) - MOST_REASONS) > 0:
        log.warning("%s: and %d reasons more; `presage import` lists all", summary.source, others)


def _is_campaign(path: Path) -> bool:
    return path.is_dir() and all((path / f"{name}.parquet").is_file() for name in CAMPAIGN_TABLES)


def _link(path: Path, folder: Path, layout: Layout) -> Path:
    """The file under the name that its importer looks for, in the first folder without one."""
    name = layout.name + (".gz" if path.suffix == ".gz" else "") if layout.name else path.name
    link = _free(folder, name)
    link.symlink_to(path.resolve())
    return link


def _link_alone(path: Path, folder: Path, layout: Layout) -> None:
    """The same, of the rows in which a job ran alone."""
    processes = ALONE[layout.name]
    if processes is None:
        _link(path, folder, layout)
        return
    rows = read_csv(path, {processes: int})
    if (alone := rows[rows[processes] == 1]).size:
        alone.to_csv(_free(folder, layout.name), index=False)


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
        f"{path}: columns {', '.join(sorted(found)[:8])} are of no source that is known; "
        f"give a folder of tables, or a file with those of {known}"
    )


def _columns(path: Path) -> frozenset[str]:
    if not path.exists():
        raise TableError(f"{path}: no such file; docs/importing.md says which files are read")
    try:
        if path.suffix == ".parquet":
            return frozenset(pq.read_schema(path).names)
        return frozenset(map(str, pd.read_csv(path, nrows=0).columns))
    except UNREADABLE as error:
        raise TableError(
            f"{path}: neither a folder of tables, nor CSV, nor parquet ({str(error)[:80]}); "
            "docs/importing.md says which files are read"
        ) from error
