"""Importers of public measurements: real files, both layouts, and invalid input."""

import gzip
import inspect
import json
import os
import subprocess
import sys
import tarfile

import pytest

from presage.errors import TableError
from presage.features.tables import schemas as tables
from presage.features.tables.campaign import read_campaign
from presage.pipelines.importers import (
    IMPORTERS,
    gavel,
    lucid,
    miso,
    parvagpu,
    pollux,
)
from presage.pipelines.importers.import_run import import_source
from presage.pipelines.importers.imported import Imported
from presage.pipelines.importers.public_models.graph_cache import GraphCache, NoGraphs
from presage.pipelines.importers.public_models.public_job import PublicModel, add_job
from presage.pipelines.profiling.zoo import FAMILIES
from tests.pipelines.public_files import (
    LAYOUTS,
    OneGraph,
    gavel_tidied,
    lucid_tidied,
    miso_tidied,
    miso_upstream,
    parvagpu_tidied,
    pollux_tidied,
    real,
    rows_of,
)

# Source -> rows of the tables, rows left out, and notes, of the real files.
COUNTS = {
    "gavel": (
        {"jobs": 26, "executions": 78, "colocations": 2 * 1053, "scale_out": 333},
        {"one device, unconsolidated": 78, "did not run on several devices": 3},
        {"slowdown left out: clipped at exactly 1.0": 83},
    ),
    "lucid": (
        {"jobs": 50, "executions": 50, "colocations": 2 * 676},
        {},
        {"slowdown left out": 222, "step time left out": 6},
    ),
    "parvagpu": (
        {"jobs": 99, "executions": 495, "colocations": 495 * (2 + 3 + 4 + 5)},
        {},
        {},
    ),
    "miso": (
        {"jobs": 32, "executions": 145},
        {},
        {"job without a graph": 24},
    ),
    "pollux": ({"jobs": 57, "executions": 57, "scale_out": 7103}, {}, {}),
}


@pytest.mark.parametrize("source", COUNTS)
def test_every_row_of_the_real_files_is_imported_or_counted_by_reason(source, tmp_path):
    written, skipped, notes = COUNTS[source]
    summary = import_source(source, real(source), tmp_path, graphs=OneGraph())

    assert {name: summary.tables[name] for name in written} == written
    assert _by_start(summary.skipped, skipped) == skipped
    assert _by_start(summary.notes, notes) == notes
    for name in ("executions", "colocations", "scale_out"):
        if (tmp_path / f"{name}.parquet").exists():
            rows = tables.read(tables.TABLES[name], tmp_path / f"{name}.parquet").to_pandas()
            assert set(rows["licence"]) <= {summary.licence}
            assert set(rows["source"]) <= {summary.url}


def _by_start(found, expected):
    """Return counts by the beginning of the reason; all reasons are in ``expected``."""
    sums = dict.fromkeys(expected, 0)
    for reason, rows in found.items():
        sums[next(start for start in expected if reason.startswith(start))] += rows
    return sums


@pytest.mark.parametrize(("source", "pairs"), [("gavel", 1053), ("lucid", 676), ("parvagpu", 1980)])
def test_real_imports_are_readable_campaigns(source, pairs, tmp_path):
    import_source(source, real(source), tmp_path, graphs=OneGraph())
    campaign = read_campaign(tmp_path)
    together = campaign.colocations.groupby(["colocation_id", "machine"])

    assert together.ngroups == pairs
    assert (together["members"].first() == together.size()).all()


def test_976_pairs_of_gavel_are_feasible_and_the_others_have_no_times(tmp_path):
    import_source("gavel", real("gavel"), tmp_path, graphs=NoGraphs())
    rows = tables.read(tables.COLOCATIONS, tmp_path / "colocations.parquet").to_pandas()

    assert rows["fits"].sum() == 2 * 976
    assert rows.loc[~rows["fits"], "step_time_median_s"].isna().all()
    assert set(rows.loc[~rows["fits"], "failure"]) == {"infeasible"}
    assert rows["slowdown"].notna().sum() == 2 * 976 - 83
    assert rows["slowdown"].min() > 1


def test_1747_runs_of_parvagpu_succeeded_and_the_others_were_out_of_memory(tmp_path):
    import_source("parvagpu", real("parvagpu"), tmp_path, graphs=NoGraphs())
    alone = tables.read(tables.EXECUTIONS, tmp_path / "executions.parquet").to_pandas()
    rows = tables.read(tables.COLOCATIONS, tmp_path / "colocations.parquet").to_pandas()
    together = rows.groupby("colocation_id").first()

    jobs = tables.read(tables.JOBS, tmp_path / "jobs.parquet").to_pandas()
    assert set(jobs["precision"]) == {"tf32"}
    assert jobs["loads_data"].all()
    assert (alone["failure"] == "").sum() + (together["failure"] == "").sum() == 1747
    assert set(rows["failure"]) == {"", "out-of-memory"}
    # More processes seldom hurry one another: the median step of five is longer than of two.
    slowdown = together.groupby("members")["slowdown"].median()
    assert slowdown.is_monotonic_increasing


@pytest.mark.parametrize("source", LAYOUTS)
def test_the_upstream_and_the_tidied_layout_give_the_same_rows(source, tmp_path):
    written = []
    for number, make in enumerate(LAYOUTS[source]):
        folder = tmp_path / str(number)
        folder.mkdir()
        imported = rows_of(source, make(folder))
        written.append((imported.rows, imported.skipped, imported.notes))

    assert written[0] == written[1]


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="needs Python 3.11.4 or newer")
@pytest.mark.parametrize("source", LAYOUTS)
def test_a_tarball_of_the_upstream_repository_is_read_as_its_folder(source, tmp_path):
    (tmp_path / "repository").mkdir()
    folder = LAYOUTS[source][0](tmp_path / "repository")
    with tarfile.open(tmp_path / "repository.tar.gz", "w:gz") as archive:
        archive.add(folder, "repository-0123abc")

    packed = rows_of(source, tmp_path / "repository.tar.gz")
    assert packed.rows == rows_of(source, folder).rows


def test_the_error_of_a_python_without_safe_unpacking_says_so(tmp_path, monkeypatch):
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    (tmp_path / "repository.tar.gz").touch()

    with pytest.raises(TableError, match=r"Python before 3\.11\.4 cannot unpack archives safely"):
        rows_of("gavel", tmp_path / "repository.tar.gz")


def test_gavel_rows_use_all_workers_and_omit_mirrored_pairs_and_clipped_labels(tmp_path):
    imported = rows_of("gavel", gavel_tidied(tmp_path))
    rows = {name: list(of.values()) for name, of in imported.rows.items()}

    assert [r["step_time_s"] for r in rows["scale_out"]] == [4 / 100, 4 / 80]
    mixed = [r for r in rows["colocations"] if r["colocation_id"].count("ResNet") == 1]
    assert [(r["job_id"], r["slowdown"]) for r in mixed] == [
        ("gavel/LM/b5", None),  # clipped: as fast co-located as solo
        ("gavel/ResNet-18/b32", pytest.approx(1.5)),
    ]
    twice = [r for r in rows["colocations"] if r["colocation_id"].count("ResNet") == 2]
    assert [r["slowdown"] for r in twice] == [2, 2]
    infeasible = [r for r in rows["colocations"] if not r["fits"]]
    assert {(r["job_id"], r["failure"]) for r in infeasible} == {("gavel/LM/b5", "infeasible")}
    assert imported.skipped["a job that is none of the 26"] == 1
    assert {r["device_kind"] for r in rows["executions"]} == {"v100-16gb"}


def test_a_physical_cluster_of_gavel_is_a_separate_campaign(tmp_path):
    content = {"v100": {"('A3C', 1)": {"null": 7.0}}}
    path = tmp_path / "physical_cluster_throughputs.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    (row,) = rows_of("gavel", path).rows["executions"].values()

    assert row["campaign"] == "gavel-physical_cluster_throughputs"


def test_speeds_of_lucid_become_step_times_except_those_of_games(tmp_path):
    imported = rows_of("lucid", lucid_tidied(tmp_path))
    alone = {row["job_id"]: row for row in imported.rows["executions"].values()}
    together = list(imported.rows["colocations"].values())

    assert alone["lucid/ResNet18-CIFAR-10/b32"]["step_time_median_s"] == 32 / 1600
    assert alone["lucid/ResNet18-CIFAR-10/b32"]["compute_utilization"] == 0.5
    assert alone["lucid/PPO-LunarLander/b32"]["step_time_median_s"] is None
    assert alone["lucid/PPO-LunarLander/b32"]["memory_peak_bytes"] == 2051 * 2**20
    slowdowns = [(row["job_id"].split("/")[1], row["slowdown"]) for row in together]
    assert slowdowns == [
        ("NeuMF-MovieLens", pytest.approx(0.8)),
        ("ResNet18-CIFAR-10", pytest.approx(1.25)),
        ("PPO-LunarLander", None),
        ("ResNet18-CIFAR-10", pytest.approx(2)),
    ]
    assert imported.rows["jobs"]["lucid/NeuMF-MovieLens/b64/amp",]["precision"] == "fp16"
    assert sum(imported.skipped.values()) == 2


def test_processes_in_a_mig_slice_share_it_and_a_single_one_is_an_execution(tmp_path):
    imported = rows_of("parvagpu", parvagpu_tidied(tmp_path))
    (alone,) = imported.rows["executions"].values()
    together = list(imported.rows["colocations"].values())

    assert (alone["share"], alone["sharing_mode"]) == (3 / 7, "mig")
    assert alone["step_time_median_s"] == 16 / 800
    assert [row["slowdown"] for row in together] == [1.6, 1.6, None, None, None]
    assert {row["sharing_mode"] for row in together} == {"mig-mps"}
    assert [row["fits"] for row in together] == [True] * 2 + [False] * 3


def test_a_placement_is_read_digit_by_digit_and_one_device_is_an_execution_too(tmp_path):
    imported = rows_of("pollux", pollux_tidied(tmp_path))
    placed = [
        (row["nodes"], row["devices"], row["placement"])
        for row in imported.rows["scale_out"].values()
    ]

    assert placed == [(1, 1, "1"), (3, 4, "1 1 2"), (6, 7, "")]
    assert [r["step_time_median_s"] for r in imported.rows["executions"].values()] == [0.04]


def _models():
    for module in (gavel, lucid, miso, parvagpu, pollux):
        for name, model in module.MODELS.items():
            if model.in_zoo:
                yield pytest.param(model, id=f"{module.ORIGIN.name}-{name}")


@pytest.mark.parametrize("model", list(_models()))
def test_every_model_is_in_the_zoo(model):
    family = FAMILIES[model.family]
    sizes = model.sizes or family.sizes(model.variant)

    inspect.signature(family.build).bind(batch_size=1, optimizer=model.optimizer, **sizes)


def test_a_graph_is_traced_once_logged_and_cached(tmp_path):
    said: list[str] = []
    model = PublicModel("mlp", "w128-d2", "sgd", 784, sizes={"width": 16, "depth": 1})
    for _ in range(2):
        graphs = GraphCache(tmp_path, on_trace=said.append)
        imported = Imported(IMPORTERS["miso"].origin)
        add_job(imported, graphs, "j", model, batch_size=4)
        row = imported.rows["jobs"]["j",]
    for kept in tmp_path.iterdir():
        kept.write_bytes(b"damaged")
    add_job(imported, graphs, "again", model, batch_size=4)

    assert len(said) == 2
    assert row["graph_digest"]
    assert row["parameters"] < 20_000
    assert imported.rows["jobs"]["again",]["graph_digest"] == row["graph_digest"]


@pytest.mark.parametrize(("family", "variant"), [("mlp", "w9-d9"), ("perceiver", "io")])
def test_a_job_missing_from_the_zoo_is_imported_without_a_graph(family, variant, tmp_path):
    imported = Imported(IMPORTERS["miso"].origin)
    model = PublicModel(family, variant, "sgd", 100)
    add_job(imported, GraphCache(tmp_path), "j", model, batch_size=4)

    assert imported.rows["jobs"]["j",]["graph_digest"] == ""
    assert imported.notes == {f"job without a graph: {family}/{variant} is not traced": 1}
    assert not list(tmp_path.iterdir())  # another zoo may have it


def test_jobs_without_a_graph_and_their_co_located_jobs_are_left_out(tmp_path):
    class NotOfLm(OneGraph):
        def graph(self, recipe, make):
            return None if "lstm_lm" in recipe else super().graph(recipe, make)

    (tmp_path / "in").mkdir()
    import_source("gavel", gavel_tidied(tmp_path / "in"), tmp_path / "out", graphs=NotOfLm())
    campaign = read_campaign(tmp_path / "out")

    assert list(campaign.jobs) == ["gavel/ResNet-18/b32"]
    assert list(campaign.executions["job_id"]) == ["gavel/ResNet-18/b32"]
    assert list(campaign.colocations["job_id"]) == ["gavel/ResNet-18/b32"] * 2


@pytest.mark.parametrize(
    ("source", "name", "content", "words"),
    [
        ("gavel", "pairs.csv", b"a,b\n1,2\n", ["pairs.csv", "no column 'source'", "'co_b'"]),
        ("gavel", "isolated.csv", b"", ["isolated.csv", "'steps_per_sec'"]),
        ("gavel", "isolated.csv.gz", b"not gzip", ["isolated.csv.gz", "cannot be read"]),
        ("gavel", "x_throughputs.json", b"{", ["x_throughputs.json", "simulation_throughputs"]),
        ("gavel", "x_throughputs.json", b'{"v100": {"(": 1}}', ["x_throughputs.json", "not Gavel"]),
        ("gavel", "x_throughputs.json", b'{"tpu": {"(\'A3C\', 1)": {"null": 1}}}', ["'tpu'"]),
        ("gavel", "x_throughputs.json", b'{"k80": {"(\'Go\', 1)": {"null": 1}}}', ["1 x a job"]),
        ("gavel", "x_throughputs.json", b"[]", ["expected Gavel"]),
        ("gavel", "x_throughputs.json", b"[" * 200_000, ["cannot be read", "expected Gavel"]),
        ("gavel", "x_throughputs.json", b'{"k80": {"(1, 1)": {"null": 1}}}', ["1 on 1 devices"]),
        ("gavel", "x_throughputs.json", b'{"k80": {"(\'A3C\', 0)": {"null": 1}}}', ["not a job"]),
        ("gavel", "x_throughputs.json", b'{"k80": {"(\'A3C\', 1)": {"null": 2, "(\'A3C\', 1)": '
         b"[1]}}}", ["not Gavel"]),
        ("lucid", "solo.csv", b"model\nBERT\n", ["holds no pairs.csv* or colocate_info.csv*"]),
        ("lucid", "LICENSE", b"no table", ["LICENSE: not a folder of Lucid's", "use the folder"]),
        ("miso", "mixes.json", b"{}", ["mixes.json", "are not read", "2,800"]),
        ("miso", "mig_isolated_step_time.csv", b"mig_slice,model,batch_size,n_steps,"
         b"step_time_median_s\n9g,bert,1,1,1\n", ["'9g'", "3g.20gb"]),
        ("miso", "mig_isolated_step_time.csv", b"mig_slice,model,batch_size,n_steps,"
         b"step_time_median_s\n1g.5gb,bert,1.5,1,1\n", ["line 2", "'batch_size'", "whole number"]),
        ("miso", "1g.5gb_bert_train2.json", b'{"0": ["x"]}', ["1g.5gb_bert_train2.json"]),
        ("miso", "1g.5gb_bert_train2.json", b'{"0": []}', ["no step was timed"]),
        ("parvagpu", "parvagpu_tidy.csv", b"Mig instance,Batch size,Workload Number,Throughput,"
         b"model\n9,1,1,1.0,bert\n", ["9 of 7 slices"]),
        ("parvagpu", "resnet50.csv", b"Mig instance,Batch size,Workload Number,Throughput\n"
         b"1,1,1,inf\n", ["resnet50.csv", "line 2", "'Throughput'", "finite"]),
        ("parvagpu", "resnet50.csv", b"Mig instance,Batch size,Workload Number,Throughput\n"
         b"1,1,1,-5\n", ["-5.0 samples/s", "cannot be"]),
        ("parvagpu", "gpt.csv", b"Mig instance,Batch size\n1,1\n", ["gpt.csv", "no column"]),
        ("pollux", "what_placements.csv", b"placement\n1\n", ["of none of the models bert, cifar"]),
        ("pollux", "pollux_t4_bert_placements.csv", b"placement,local_bsz,step_time,sync_time\n"
         b"10,4,0.1,0.1\n", ["placement '10'"]),
        ("pollux", "pollux_t4_bert_placements.csv", b"placement,local_bsz,step_time,sync_time\n"
         b"1,4,-1,0\n", ["-1.0 s"]),
        ("pollux", "repository.tar.gz", b"no tar", ["repository.tar.gz", "cannot be read"]),
    ],
)  # fmt: skip
def test_the_error_of_an_unreadable_file_says_what_was_expected(
    source, name, content, words, tmp_path
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError) as raised:
        import_source(source, tmp_path / name, tmp_path / "out", graphs=NoGraphs())

    assert "\n" not in str(raised.value)
    for word in words:
        assert word in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("source", LAYOUTS)
def test_the_error_of_a_missing_or_empty_folder_says_what_it_should_hold(source, tmp_path):
    for folder, word in ((tmp_path / "absent", "no such file"), (tmp_path, "holds no")):
        with pytest.raises(TableError, match=word) as raised:
            import_source(source, folder, tmp_path / "out", graphs=NoGraphs())
        assert "docs/pipeline/importing.md" in str(raised.value)


def test_a_truncated_gzip_log_is_rejected(tmp_path):
    whole = gzip.compress(json.dumps({"0": [0.1] * 1000}).encode())
    (tmp_path / "1g.5gb_bert_train2.json.gz").write_bytes(whole[: len(whole) // 2])

    with pytest.raises(TableError, match="cannot be read"):
        import_source("miso", tmp_path, tmp_path / "out", graphs=NoGraphs())


def _presage(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "presage", "import", *map(str, arguments)],
        cwd=cwd, env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "160", "NO_COLOR": "1"},
        text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_command_writes_the_default_folder_and_reports_omitted_rows(tmp_path):
    (tmp_path / "in").mkdir()
    miso_upstream(tmp_path / "in")
    done = _presage("miso", "in", "--no-graphs", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "miso (MIT) in data/public/miso" in done.stdout
    assert "graphs were not wanted" in done.stdout
    assert (tmp_path / "data/public/miso/executions.parquet").exists()


def test_the_command_prints_json_or_one_line_of_error(tmp_path):
    (tmp_path / "in").mkdir()
    miso_tidied(tmp_path / "in")
    done = _presage("miso", "in", "--out", "out", "--no-graphs", "--json", cwd=tmp_path)
    wrong = _presage("misoo", "in", cwd=tmp_path)

    assert json.loads(done.stdout)["tables"] == {"jobs": 2, "executions": 2, "devices": 1}
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: no source 'misoo'; did you mean 'miso'?")
    assert wrong.stderr.count("\n") == 1
