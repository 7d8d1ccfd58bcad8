"""The front page against the tree that it lies in."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard, DatasetCardData
from markdown_it import MarkdownIt
from small_results import mini, publish, small_results

from genselect.formats import read_json, write_json
from genselect.publishing.fields import tables
from genselect.publishing.publication import read_publication

KEYS = {"max_files": 120, "repository": "someone/genselect-mini", "links": {"Paper": "https://example.org/paper"}}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both trees of a small experiment; the Hub's with packed folders, an adapter and a tracked run."""
    results = small_results(tmp_path_factory.mktemp("page") / "results")
    adapter = results / "publication/mini/adapters/formal/global_step_1/actor/lora_adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "README.md").write_text("An adapter.\n")
    write_json(
        results / "tracking/formal/run.json", {"kind": "wandb", "id": "abc123", "url": "https://example.org/abc123"}
    )
    publish(mini(adapters=[{"run": "formal", "step": 1}], **KEYS), results)
    return results / "publication" / "mini"


@pytest.fixture(params=["hub", "reading_copy"])
def tree(trees: Path, request: pytest.FixtureRequest) -> Path:
    return trees / request.param


def page(tree: Path) -> str:
    return (tree / "README.md").read_text()


def section(tree: Path, title: str) -> str:
    return page(tree).split(f"\n## {title}\n")[1].split("\n## ")[0]


def files(tree: Path) -> list[str]:
    return sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())


def tree_lines(tree: Path) -> list[tuple[list[str], int]]:
    """Paths of each line of the directory tree, and how many files it says."""
    found = re.findall(
        r"^- ((?:`[^`]+`(?:, )?)+) \(([\d,]+) files?[^)]*\): \S.*\.$", section(tree, "Directory tree"), re.MULTILINE
    )
    lines = [line for line in section(tree, "Directory tree").splitlines() if line.startswith("- ")]
    assert len(found) == len(lines), "a line of the tree has another form"
    return [(re.findall(r"`([^`]+)`", paths), int(count.replace(",", ""))) for paths, count in found]


def fits(file: str, path: str) -> bool:
    """As a shell's globstar: ``*`` within a name, ``**`` over folders, none included."""
    folder, deep, name = path.replace("[", "[[]").partition("/**/")
    if deep:
        return file.startswith(f"{folder}/") and fnmatchcase(file.rpartition("/")[2], name)
    return fnmatchcase(file, folder) and file.count("/") == path.count("/")


def test_every_path_of_the_tree_is_there_and_every_file_and_folder_is_named(tree: Path) -> None:
    there, named = files(tree), {}
    for paths, count in tree_lines(tree):
        fitting = {file for file in there for path in paths if fits(file, path)}
        assert len(fitting) >= count, paths
        for path in paths:
            assert any(fits(file, path) for file in fitting), path
        named.update(dict.fromkeys(fitting, True))
    assert sorted(named) == there
    assert sum(count for _, count in tree_lines(tree)) == len(there)
    # Each folder has a line of its own, but for what lies in nearly all of them.
    spread = re.compile(r"\.seal\.json$|^(logs|benchmarks)/")
    folders = {path.rpartition("/")[0] for paths, _ in tree_lines(tree) for path in paths if not spread.search(path)}
    assert folders == {file.rpartition("/")[0] for file in there if not spread.search(file)}
    assert max(Counter(tuple(paths) for paths, _ in tree_lines(tree)).values()) == 1
    assert sum("seal" in path for paths, _ in tree_lines(tree) for path in paths) <= 3


def test_links_inside_lead_somewhere_and_the_others_are_the_configurations(tree: Path) -> None:
    links = re.findall(r"\[[^\]]+\]\(([^)\s]+)\)", page(tree))
    inside = [link for link in links if not link.startswith("https://")]
    assert {"report/mini/index.html", "evaluation/mini/comparison.md"} <= set(inside)
    assert [link for link in inside if not (tree / link).exists()] == []
    assert "https://example.org/paper" in links
    assert "https://example.org/abc123" in links
    whole = "https://huggingface.co/datasets/someone/genselect-mini"
    assert (whole in links) == (tree.name == "reading_copy")


def test_the_code_on_it_runs_in_its_folder(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copytree(tree, tmp_path / "copy")
    monkeypatch.chdir(copy)
    blocks = re.findall(r"```(\w+)\n(.*?)\n```", section(tree, "How to read each kind of file"), re.DOTALL)
    ran = 0
    for language, code in blocks:
        if language == "python" and "peft" not in code:
            exec(compile(code, "the front page", "exec"), {})
            ran += 1
    assert ran == (8 if tree.name == "hub" else 7)
    assert any("PeftModel.from_pretrained" in code for _, code in blocks) == (tree.name == "hub")
    tars = [code for _, code in blocks if code.startswith("tar ")]
    assert len(tars) == (tree.name == "hub")
    for code in tars:
        tar, folder = re.fullmatch(r"tar -xf (\S+) -C (\S+)\s+# gives (\S+)/ again", code).groups()[::2]
        assert (tree / tar).exists()
        assert folder == tar.removesuffix(".tar")


def test_the_check_on_it_finds_a_changed_file(trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copytree(trees / "hub", tmp_path / "copy")
    monkeypatch.chdir(copy)
    code = next(code for code in re.findall(r"```python\n(.*?)\n```", page(copy), re.DOTALL) if "hashlib" in code)
    file = copy / "gates/smoke.json"
    changed = file.read_bytes() + b" "
    file.unlink()
    file.write_bytes(changed)
    with pytest.raises(AssertionError, match=r"gates/smoke\.json"):
        exec(compile(code, "the front page", "exec"), {})


def test_it_is_a_dataset_card_that_the_hub_takes(tree: Path) -> None:
    card = DatasetCard.load(tree / "README.md")
    assert isinstance(card.data, DatasetCardData)
    values = card.data.to_dict()
    assert values["license"] == "cc-by-4.0"
    assert values["language"] == "en"
    assert values["size_categories"] == "n<1K"
    assert "genselect" in values["tags"]
    configs = {config["config_name"]: config for config in values["configs"]}
    assert configs["rows"]["default"] is True
    assert [file["split"] for file in configs["rows"]["data_files"]] == ["train", "validation"]
    for config in configs.values():
        schemas = set()
        for file in config["data_files"]:
            fitting = list(tree.glob(file["path"]))
            assert fitting, file
            schemas |= {pq.read_schema(path).remove_metadata().to_string() for path in fitting}
        assert len(schemas) == 1, f"the viewer would mix tables in {config['config_name']}"
    # Written and read again it says the same.
    assert DatasetCard(str(card)).data.to_dict() == values


def test_the_comparisons_own_words_are_the_status(tree: Path) -> None:
    comparison = read_json(tree / "evaluation/mini/comparison.json")
    said = section(tree, "Status")
    for entry in comparison["hypotheses"]:
        assert f"- **{entry['arm']} above {entry['against']}?** {entry['verdict']['sentence']}\n" in said
    assert "The gate `overfit` was waived: known" in said


def test_row_fields_are_those_of_the_files(tree: Path) -> None:
    shown = section(tree, "Row fields")
    kinds = {file.kind: tree / file.path for file in read_publication(tree).files}
    for table in tables():
        lying = [kinds[kind] for kind in table.kinds if kind in kinds and kinds[kind].suffix == ".parquet"]
        names = {re.split(r"[.\[]", field.name)[0] for field in table.fields}
        for path in lying:
            assert names == set(pq.read_schema(path).names), path
        if lying:
            for field in table.fields:
                assert f"| `{field.name}` | " in shown
    assert "tokens_step" in shown or tree.name == "reading_copy"


def test_runs_have_their_lineage_attempts_guards_and_trackers(tree: Path) -> None:
    said = section(tree, "Runs")
    assert "- **slow** (formal, seed 1): 0 of 20 steps, not finished, on all rows, from the initial adapters." in said
    assert "It differs from formal in: `optimiser.actor_lr: 0.001 -> 0.0005`." in said
    assert "Held-out verdict: 0.250 at step 1, 0.750 at step 3." in said
    assert "worst warning; they spoke in 1 step(s), last at step 2 (warning: explores_fall)" in said
    assert re.search(r"\| formal \| 1 \| \S+ \| – \| killed \| – \| 2 \|", said)
    assert re.search(r"\| formal \| 2 \| \S+ \| \S+ \| done \| 1 \| 3 \|", said)
    assert "Gates: smoke passed, overfit failed (waived: known)." in said
    assert "- Run formal: W&B [abc123](https://example.org/abc123)." in section(tree, "Links")


def test_what_was_packed_and_left_out_is_told_with_its_numbers(tree: Path) -> None:
    publication = read_publication(tree)
    said = section(tree, "What is not as it was")
    for archive in publication.archives:
        assert f"| `{archive.path}` | `{archive.folder}/` | {archive.members} | " in said
    assert bool(publication.archives) == (tree.name == "hub")
    assert publication.left_out
    for entry in publication.left_out:
        assert re.search(rf"\| {entry.files} \| [\d.]+ \w+ \| {re.escape(entry.why)} \|", said), entry


def test_weights_are_named_only_when_they_are_there(tree: Path) -> None:
    said = section(tree, "Weights and inputs")
    named = re.findall(r"`(checkpoints/[^`]+)`", said)
    assert [path for path in named if not (tree / path).is_dir()] == []
    assert bool(named) == (tree.name == "hub")
    assert ("No weight is here" in said) == (tree.name == "reading_copy")
    assert "320 generated problems" in said


def test_it_is_plain_markdown_without_accidental_html_or_broken_tables(tree: Path) -> None:
    body = page(tree).split("---\n", 2)[2]
    tokens = [
        inner
        for token in MarkdownIt("commonmark").enable("table").parse(body)
        for inner in [token, *(token.children or [])]
    ]
    assert [token.content for token in tokens if token.type.startswith("html")] == []
    assert sum(token.type == "table_open" for token in tokens) >= 8
    text = [token.content for token in tokens if token.type == "text"]
    assert [line for line in text if line.startswith("|") or "{{" in line or "None" in line] == []


def test_a_tree_without_an_evaluation_or_runs_says_so(tmp_path: Path) -> None:
    results = small_results(tmp_path / "results")
    for folder in ("evaluation", "runs", "gates", "report"):
        shutil.rmtree(results / folder)
    publish(mini(), results)
    tree = results / "publication/mini/hub"
    assert "There is no comparison" in section(tree, "Status")
    assert "## Links" not in page(tree)
    assert "0 of 20 steps, not finished" in section(tree, "Runs")
    assert json.loads((tree / "publication.json").read_text())["name"] == "mini"
