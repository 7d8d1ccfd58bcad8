"""Names of shards, and banners."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from genselect.config import check_config, load_config
from genselect.config.training import BaseModel
from genselect.errors import GenselectError
from genselect.plan import banners
from genselect.plan.inputs import check_base_model, shard_names


def test_the_hub_shards_are_the_fourteen_of_the_split(repository: Path) -> None:
    names = shard_names(load_config(repository / "config" / "config.yaml").dataset)
    assert len(names) == 14
    assert (names[0], names[-1]) == ("genselect-00000-of-00014.parquet", "genselect-00013-of-00014.parquet")


@pytest.mark.parametrize(
    ("shards", "what"),
    [(["a/x.parquet", "b/x.parquet"], "x.parquet is listed twice"), (["x.csv"], "x.csv is not a Parquet file")],
)
def test_unusable_shard_lists_are_refused(shards: list[str], what: str) -> None:
    with pytest.raises(GenselectError, match=what):
        shard_names(check_config({"dataset": {"name": "x", "shards": shards}}, "c").dataset)


def test_an_empty_local_folder_is_refused(tmp_path: Path) -> None:
    dataset = check_config({"dataset": {"name": "x", "source": "local", "local_dir": str(tmp_path)}}, "c").dataset
    with pytest.raises(GenselectError, match=r"holds no \*\.parquet file"):
        shard_names(dataset)


def test_a_local_folder_that_is_not_there_is_told_apart_from_an_empty_one(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    dataset = check_config({"dataset": {"name": "x", "source": "local", "local_dir": str(lost)}}, "c").dataset
    with pytest.raises(GenselectError, match=rf"dataset\.local_dir: {lost}: there is no such folder"):
        shard_names(dataset)


def test_a_local_model_is_looked_at_before_anything_is_planned(tmp_path: Path) -> None:
    base = BaseModel(source="local", path=tmp_path / "model")
    with pytest.raises(GenselectError, match=r"models\.base\.path: .*model: there is no such folder"):
        check_base_model(base)
    (tmp_path / "model").mkdir()
    with pytest.raises(GenselectError, match=r"holds no config\.json"):
        check_base_model(base)
    (tmp_path / "model" / "config.json").touch()
    check_base_model(base)
    check_base_model(BaseModel())


@pytest.mark.parametrize(("seconds", "said"), [(7, "7 s"), (200, "3 min 20 s"), (9000, "2 h 30 min")])
def test_the_banner_says_how_long_it_took(seconds: int, said: str) -> None:
    started = datetime.datetime.now() - datetime.timedelta(seconds=seconds)
    assert f"stopped after {said};" in banners.failure("logs", started)


def test_the_banner_says_the_word_when_this_run_made_it(repository: Path, tmp_path: Path) -> None:
    config = load_config(repository / "config" / "mini.yaml")
    entry = {"name": "formal@20 above untrained", "exploratory": False, "verdict": {"sentence": "Yes, it rose above."}}
    now = datetime.datetime.now()
    assert "final word" not in banners.success(config, "data", "logs", str(tmp_path), "page", "publication", now)
    (tmp_path / "comparison.json").write_text(json.dumps({"hypotheses": [entry]}))
    said = banners.success(
        config, "data", "logs", str(tmp_path), "page", "publication", now - datetime.timedelta(minutes=1)
    )
    assert f"the final word: {tmp_path / 'comparison.md'}" in said
    assert "formal@20 above untrained? Yes, it rose above." in said
    # One of an earlier run is named, not repeated as news.
    assert "rose" not in banners.success(
        config, "data", "logs", str(tmp_path), "page", "publication", now + datetime.timedelta(minutes=1)
    )
