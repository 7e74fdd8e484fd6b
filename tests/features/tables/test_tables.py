from itertools import count
from threading import Event, Thread

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from presage.errors import TableError
from presage.features.tables import schemas as tables

ROW = {
    "job_id": "mlp/w64/b8/sgd", "device_kind": "cpu-2", "share": 1.0, "sharing_mode": "exclusive",
    "steps": 30, "step_time_median_s": 0.01, "step_time_p90_s": 0.02, "compute_utilization": 0.7,
    "memory_utilization": 0.01, "memory_peak_bytes": 1 << 28, "setup_s": 2.5, "foreign_load": 0.01,
    "failure": "", "campaign": "c", "machine": "m", "versions": "torch=2", "measured_at_s": 1.0,
}  # fmt: skip

TOGETHER = {
    "colocation_id": "a + b @ cpu-2", "member": 0, "members": 2, "job_id": "a",
    "device_kind": "cpu-2", "share": 1.0, "sharing_mode": "time-slice", "steps": 9,
    "step_time_median_s": 0.03, "solo_step_time_s": 0.02, "slowdown": 1.5, "foreign_load": 0.01,
    "fits": True, "failure": "", "campaign": "c", "machine": "m", "versions": "torch=2",
    "measured_at_s": 1.0,
}  # fmt: skip


def table(**columns) -> pa.Table:
    data = tables.from_rows(tables.EXECUTIONS, [ROW], source="test")
    for name, values in columns.items():
        position = data.column_names.index(name)
        data = data.set_column(position, name, pa.array(values))
    return data


def refused(data: pa.Table, match: str) -> None:
    with pytest.raises(TableError, match=match):
        tables.check(tables.EXECUTIONS, data, source="runs.parquet")


def test_a_table_round_trips(tmp_path):
    path = tmp_path / "executions.parquet"
    tables.write(tables.EXECUTIONS, table(), path)

    (row,) = tables.read(tables.EXECUTIONS, path).to_pylist()
    assert row | ROW == row
    assert [p.name for p in tmp_path.iterdir()] == ["executions.parquet"]


def test_the_same_rows_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        tables.write(tables.EXECUTIONS, table(), tmp_path / name)

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_error_names_a_missing_column_and_the_nearest_present():
    data = table().rename_columns([c.replace("steps", "step") for c in table().column_names])
    refused(data, r"runs.parquet: no column 'steps' .*did you mean 'step'")


def test_the_error_names_an_extra_column():
    refused(table().append_column("mood", pa.array(["good"])), "column 'mood' does not belong")


def test_the_error_names_a_mistyped_column_with_both_types():
    refused(table(steps=["thirty"]), "column 'steps' is string, must be int64")


def test_the_error_names_the_row_of_a_nan():
    refused(table(setup_s=[float("nan")]), "row 0, column 'setup_s' is nan, must be a finite")


def test_infinity_is_refused():
    refused(table(setup_s=[float("inf")]), "finite")


def test_the_error_names_the_row_of_a_negative_time():
    refused(table(step_time_median_s=[-0.5]), "row 0, column 'step_time_median_s' is -0.5")


def test_a_null_in_a_required_column_is_rejected():
    refused(table(job_id=pa.array([None], pa.string())), "'job_id' must not be empty")


def test_a_failed_run_has_no_measurements():
    failed = ROW | {"step_time_median_s": None, "failure": "out-of-memory"}

    assert tables.from_rows(tables.EXECUTIONS, [failed], source="test").num_rows == 1


@pytest.mark.parametrize(
    "column",
    [
        "step_time_median_s",
        "step_time_p90_s",
        "compute_utilization",
        "memory_utilization",
        "memory_peak_bytes",
        "setup_s",
    ],
)
def test_a_run_that_did_not_fail_holds_every_measurement(column):
    with pytest.raises(TableError, match=f"test: row 1, column '{column}' is empty, must hold"):
        tables.from_rows(
            tables.EXECUTIONS, [ROW, ROW | {"job_id": "other", column: None}], source="test"
        )


def test_an_old_file_without_a_column_is_read_with_its_former_meaning(tmp_path):
    path = tmp_path / "executions.parquet"
    younger = ["source", "licence", "power_w"]
    pq.write_table(table().drop_columns(younger), path)
    (row,) = tables.read(tables.EXECUTIONS, path).to_pylist()

    assert [row[name] for name in younger] == [tables.OUR_SOURCE, tables.OUR_LICENCE, None]


def test_imported_rows_need_at_least_one_measurement():
    published = ROW | {"source": "elsewhere", "setup_s": None, "memory_peak_bytes": None}
    nothing = published | {"step_time_median_s": None, "compute_utilization": None}

    assert tables.from_rows(tables.EXECUTIONS, [published], source="test").num_rows == 1
    with pytest.raises(TableError, match="nothing was measured"):
        tables.from_rows(tables.EXECUTIONS, [nothing], source="test")


def test_parameters_are_present_exactly_with_a_graph():
    job = {
        "job_id": "a", "name": "a", "family": "a", "framework": "torch", "precision": "fp32",
        "optimizer": "sgd", "batch_size": 1, "iterations": 1, "input_elements": 1,
        "graph_digest": "", "parameters": None, "peak_live_bytes": None,
    }  # fmt: skip

    assert tables.from_rows(tables.JOBS, [job], source="test").num_rows == 1
    with pytest.raises(TableError, match="'parameters' is empty"):
        tables.from_rows(tables.JOBS, [job | {"graph_digest": "abc"}], source="test")


def test_the_foreign_load_of_imported_rows_may_be_unknown():
    unknown = ROW | {"foreign_load": None}

    assert tables.from_rows(tables.EXECUTIONS, [unknown], source="test").num_rows == 1


def test_a_step_time_of_zero_is_rejected():
    refused(table(step_time_median_s=[0.0]), "row 0, column 'step_time_median_s' is 0.0, must be >")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"step_time_median_s": None}, "column 'step_time_median_s' is empty, must hold a value"),
        ({"solo_step_time_s": None}, "column 'solo_step_time_s' is empty, must hold a value"),
        ({"solo_step_time_s": 0.0}, "column 'solo_step_time_s' is 0.0, must be > 0"),
        ({"slowdown": 0.0}, "column 'slowdown' is 0.0, must be > 0"),
        ({"slowdown": 1.5 * (1 + 2e-6)}, "must be step_time_median_s / solo_step_time_s"),
    ],
)
def test_a_slowdown_is_the_ratio_of_two_present_times(change, match):
    with pytest.raises(TableError, match=f"^together: row 0, .*{match}"):
        tables.from_rows(tables.COLOCATIONS, [TOGETHER | change], source="together")


@pytest.mark.parametrize(
    "change", [{}, {"slowdown": 1.5 * (1 + 1e-9)}, {"slowdown": None, "step_time_median_s": None}]
)
def test_a_member_may_be_slowed_down_or_fail_by_another(change):
    given = TOGETHER | change
    (row,) = tables.from_rows(tables.COLOCATIONS, [given], source="together").to_pylist()

    assert row | given == row


def test_two_rows_with_one_key_are_refused():
    with pytest.raises(TableError, match=r"2 rows share the key .*mlp/w64/b8/sgd"):
        tables.from_rows(tables.EXECUTIONS, [ROW, ROW], source="test")


def test_the_error_of_a_missing_file_says_how_to_measure(tmp_path):
    with pytest.raises(TableError, match="presage profile"):
        tables.read(tables.EXECUTIONS, tmp_path / "none.parquet")


@pytest.mark.parametrize("content", [b"", b"not parquet at all", b"PAR1 and then nothing"])
def test_a_file_that_is_not_parquet_is_refused(tmp_path, content):
    path = tmp_path / "executions.parquet"
    path.write_bytes(content)
    with pytest.raises(TableError, match="not a readable parquet file"):
        tables.read(tables.EXECUTIONS, path)


def test_a_truncated_table_is_refused(tmp_path):
    path = tmp_path / "executions.parquet"
    pq.write_table(table(), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TableError):
        tables.read(tables.EXECUTIONS, path)


def test_a_table_replaced_during_a_read_is_not_read_in_part(tmp_path):
    path = tmp_path / "executions.parquet"
    two = [tables.from_rows(tables.EXECUTIONS, rows, source="test") for rows in _FEW_AND_MANY]
    tables.write(tables.EXECUTIONS, two[0], path)
    done = Event()

    def swap() -> None:
        for turn in count():
            tables.write(tables.EXECUTIONS, two[turn % 2], path)
            if done.is_set():
                return

    writer = Thread(target=swap)
    writer.start()
    try:
        found = {tables.read(tables.EXECUTIONS, path).num_rows for _ in range(300)}
    finally:
        done.set()
        writer.join()
    assert found <= {1, 40}


_FEW_AND_MANY = ([ROW], [ROW | {"job_id": f"job {i}", "setup_s": i / 7} for i in range(40)])


def test_a_rejected_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "executions.parquet"
    tables.write(tables.EXECUTIONS, table(), path)
    before = path.read_bytes()
    with pytest.raises(TableError):
        tables.write(tables.EXECUTIONS, table(setup_s=[-1.0]), path)

    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_the_error_of_a_file_in_place_of_the_folder_is_one_line_with_a_remedy(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TableError, match=r"file/executions\.parquet: cannot be written .*another"):
        tables.write(tables.EXECUTIONS, table(), tmp_path / "file/executions.parquet")


def test_every_column_has_a_description():
    for definition in tables.TABLES.values():
        assert all(column.meaning for column in definition.columns), definition.name


def test_a_frame_gives_the_table_of_its_rows():
    rows = [ROW, ROW | {"job_id": "b", "setup_s": None, "failure": "out-of-memory"}]
    frame = pd.DataFrame(rows)  # setup_s is NaN
    frame["memory_peak_bytes"] = frame["memory_peak_bytes"].astype(float)

    found = tables.from_frame(tables.EXECUTIONS, frame.assign(more=1), source="test")
    assert found == tables.from_rows(tables.EXECUTIONS, rows, source="test")


def test_a_frame_with_a_value_of_another_type_is_refused():
    frame = pd.DataFrame([ROW]).assign(steps="many")
    with pytest.raises(TableError, match=r"test: a row does not fit table 'executions'"):
        tables.from_frame(tables.EXECUTIONS, frame, source="test")


def test_a_frame_without_a_column_is_refused():
    with pytest.raises(TableError, match=r"test: no column 'steps'"):
        tables.from_frame(
            tables.EXECUTIONS, pd.DataFrame([ROW]).drop(columns="steps"), source="test"
        )
