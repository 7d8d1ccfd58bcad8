"""Finding shards and refusing bad ones, each with an error that names file, place and way out."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genselect.dataset.shards import COLUMNS, SHARD_SCHEMA, find_shards, open_shards, read_batches
from genselect.errors import GenselectError

ROW = dict.fromkeys(SHARD_SCHEMA.names, "x") | {"used_in_kaggle": True}


def write(path, rows=1, schema=SHARD_SCHEMA, row=ROW, **options):
    table = pa.Table.from_pylist([{name: row[name] for name in schema.names}] * rows, schema=schema)
    pq.write_table(table, path, **options)
    return path


def error_of(*paths):
    with pytest.raises(GenselectError) as caught:
        for shard in open_shards(find_shards(paths)):
            list(read_batches(shard))
    return str(caught.value)


def test_folders_are_read_in_name_order_and_arguments_as_given(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / "in").mkdir(exist_ok=True)
        write(tmp_path / "in" / f"{name}.parquet")
    (tmp_path / "in" / "notes.txt").write_text("not a shard")
    last = write(tmp_path / "0.parquet", rows=2)
    names = [path.name for path in find_shards([tmp_path / "in", last])]
    assert names == ["a.parquet", "b.parquet", "c.parquet", "0.parquet"]


def test_the_needed_columns_come_in_batches_with_their_place(tmp_path):
    shard = open_shards([write(tmp_path / "a.parquet", rows=2500, row_group_size=700)])[0]
    assert shard.rows == 2500
    firsts, total = [], 0
    for first, batch in read_batches(shard):
        assert set(batch.schema.names) == set(COLUMNS)
        firsts.append(first)
        total += batch.num_rows
    assert total == 2500
    assert firsts[:2] == [0, 1024]


def test_a_missing_file(tmp_path):
    assert "gone.parquet: there is no such file or folder\nHint: Download" in error_of(tmp_path / "gone.parquet")


def test_an_empty_folder(tmp_path):
    assert "no *.parquet file in this folder\nHint: Name the folder" in error_of(tmp_path)


def test_a_shard_named_twice(tmp_path):
    path = write(tmp_path / "a.parquet")
    assert "a.parquet: this shard is given twice" in error_of(tmp_path, path)


def test_a_copy_of_a_shard(tmp_path):
    shutil.copy(write(tmp_path / "a.parquet"), tmp_path / "b.parquet")
    text = error_of(tmp_path)
    assert "b.parquet: the same shard as" in text
    assert "byte for byte\nHint: Name each shard once" in text


def test_shards_of_equal_size_need_not_be_copies(tmp_path):
    write(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", row=ROW | {"problem": "y"})
    assert len(open_shards(find_shards([tmp_path]))) == 2


def test_a_missing_column(tmp_path):
    text = error_of(write(tmp_path / "a.parquet", schema=SHARD_SCHEMA.remove(5)))
    assert (
        "a.parquet: not the columns of a genselect shard: missing problem\nHint: The columns are expected_answer"
        in text
    )


def test_an_unknown_column(tmp_path):
    schema = SHARD_SCHEMA.append(pa.field("score", pa.string()))
    assert "unknown score" in error_of(write(tmp_path / "a.parquet", schema=schema, row=ROW | {"score": "1"}))


def test_used_in_kaggle_may_lack(tmp_path):
    assert open_shards([write(tmp_path / "a.parquet", schema=SHARD_SCHEMA.remove(8))])[0].rows == 1


def test_a_wrong_type(tmp_path):
    schema = SHARD_SCHEMA.set(4, pa.field("pass_rate_72b_tir", pa.float64()))
    text = error_of(write(tmp_path / "a.parquet", schema=schema, row=ROW | {"pass_rate_72b_tir": 0.5}))
    assert "a.parquet: column pass_rate_72b_tir must be string, not double\nHint: Use the publisher's file" in text


def test_an_empty_shard(tmp_path):
    assert "a.parquet: the shard holds no row\nHint: Leave it out" in error_of(write(tmp_path / "a.parquet", rows=0))


@pytest.mark.parametrize("kept", [0, 3, 300])
def test_a_truncated_shard(tmp_path, kept):
    path = write(tmp_path / "a.parquet", rows=100)
    path.write_bytes(path.read_bytes()[:kept])
    text = error_of(path)
    assert "a.parquet: not a whole Parquet file:" in text
    assert "Hint: Fetch the shard again" in text


def test_a_file_that_is_not_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_text("<html>404</html>" * 10)
    assert "a.parquet: not a whole Parquet file" in error_of(path)


def test_a_damaged_page(tmp_path):
    rows = [ROW | {"problem": f"{index} " + np.random.default_rng(index).bytes(400).hex()} for index in range(4000)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=SHARD_SCHEMA), path, row_group_size=2000, use_dictionary=False)
    damaged = bytearray(path.read_bytes())
    # The column's second row group, past its page header.
    start = pq.ParquetFile(path).metadata.row_group(1).column(5).data_page_offset + 200
    damaged[start : start + 10_000] = b"\xff" * 10_000
    path.write_bytes(bytes(damaged))
    text = error_of(path)
    assert "a.parquet: damaged after row " in text
    assert "Hint: Fetch the shard again" in text


def test_a_string_that_is_not_utf8(tmp_path):
    values = pa.array([b"fine", "größer".encode("latin-1")], pa.binary())
    table = pa.Table.from_pylist([ROW, ROW], schema=SHARD_SCHEMA)
    bad = pa.StringArray.from_buffers(2, *values.buffers()[1:])
    path = tmp_path / "a.parquet"
    pq.write_table(table.set_column(0, "expected_answer", bad), path)
    text = error_of(path)
    assert "a.parquet, row 1 (from 0), column expected_answer: not UTF-8:" in text
    assert "Hint: The file is damaged or was written in another encoding" in text
