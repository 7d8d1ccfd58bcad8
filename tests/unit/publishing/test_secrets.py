"""Secrets are found wherever they stand, are never shown, and nothing else is taken for one."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planted_secrets import HARMLESS, SECRETS
from small_results import mini, publish, small_results

from genselect.errors import GenselectError
from genselect.publishing.contents import CONTENTS
from genselect.publishing.examine import check_secrets, find_secrets
from genselect.publishing.packing import Item
from genselect.publishing.secrets import SecretSearch, own_secrets

KINDS = list(SECRETS)
SEARCH = SecretSearch({})


def items(root: Path) -> list[Item]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return [Item(path.relative_to(root).as_posix(), path, path.stat().st_size, CONTENTS[0]) for path in files]


def refusal(root: Path, search: SecretSearch = SEARCH) -> str:
    with pytest.raises(GenselectError) as refused:
        check_secrets(items(root), search)
    return str(refused.value)


def secret_of(text: str) -> str:
    """The longest run of characters without a break: no part of the secret is longer."""
    return max(text.replace('"', " ").replace("/", " ").split(), key=len)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What is found in a tree with every kind in a log, a JSON file, a notebook, a Parquet file and a git configuration of its own."""
    root = tmp_path_factory.mktemp("planted")
    for kind, (_, text) in SECRETS.items():
        folder = root / kind
        (folder / "attempts").mkdir(parents=True)
        (folder / "attempts/1.log").write_text(f"step 1\nstep 2: env {text}\nstep 3\n")
        (folder / "manifest.json").write_text(json.dumps({"argv": ["--x", text]}, indent=2))
        cell = {"cell_type": "code", "source": ["import os\n", f"x = '{text}'\n"], "outputs": []}
        (folder / "look.ipynb").write_text(json.dumps({"cells": [cell]}, indent=1))
        rows = [
            {"question": "a", "turns": [{"text": "b"}]},
            {"question": "c", "turns": [{"text": "d"}, {"text": f"see {text}"}]},
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / "nested.parquet", compression="zstd")
        (folder / "config").write_text(f"[core]\n\tbare = false\n[user]\n\tnote = {text}\n")
    return find_secrets(items(root), SEARCH)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_found_in_every_kind_of_file_and_is_not_shown(planted: list[str], kind: str) -> None:
    what, text = SECRETS[kind]
    later = text.count("\n")
    said = {line for line in planted if line.startswith(f"{kind}/")}
    assert said == {
        f"{kind}/attempts/1.log, line {2 + later}: {what}",
        f"{kind}/manifest.json, line 4: {what}",
        f"{kind}/look.ipynb, line 7: {what}",
        f"{kind}/nested.parquet, row 1, column turns: {what}",
        f"{kind}/config, line {4 + later}: {what}",
    }
    assert secret_of(text) not in "".join(planted)


@pytest.mark.parametrize("kind", ["huggingface", "github", "aws", "wandb_new", "google", "gitlab"])
def test_a_secret_in_a_files_name_is_found_and_hidden(tmp_path: Path, kind: str) -> None:
    what, text = SECRETS[kind]
    (tmp_path / f"run-{text}.log").write_text("nothing here\n")
    said = refusal(tmp_path)
    assert re.search(rf"- run-\*\*\*(\.log)?, in its name: {re.escape(what)}", said)
    assert text not in said


@pytest.mark.parametrize("name", [".netrc", "home/id_rsa", "keys/server.pem", ".git-credentials"])
def test_files_of_credentials_are_known_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("whatever\n")
    assert f"{name}, in its name: name of a file of credentials" in refusal(tmp_path)


def test_it_is_found_in_columns_of_other_types_and_in_parquets_metadata(tmp_path: Path) -> None:
    _, text = SECRETS["huggingface"]
    columns = {
        "dictionary": pa.array(["a", text, None]).dictionary_encode(),
        "binary": pa.array([b"a", None, text.encode()], pa.binary()),
        "large": pa.array([text, "b", "c"], pa.large_string()),
        "map": pa.array([[], [("k", text)], []], pa.map_(pa.string(), pa.string())),
        "struct": pa.array([{"x": {"y": "a"}}, {"x": None}, {"x": {"y": text}}]),
        "numbers": pa.array([1, 2, 3]),
    }
    for row, name in ((1, "dictionary"), (2, "binary"), (0, "large"), (1, "map"), (2, "struct")):
        folder = tmp_path / name
        folder.mkdir()
        pq.write_table(pa.table({name: columns[name], "numbers": columns["numbers"]}), folder / "x.parquet")
        assert f"x.parquet, row {row}, column {name}: Hugging Face token" in refusal(folder)
    told = tmp_path / "metadata"
    told.mkdir()
    table = pa.table({"numbers": columns["numbers"]}).replace_schema_metadata({"token": text})
    pq.write_table(table, told / "x.parquet")
    assert "x.parquet, its schema and metadata: Hugging Face token" in refusal(told)


def test_rows_are_counted_over_the_whole_parquet_file(tmp_path: Path) -> None:
    texts = [f"text {row}" for row in range(1000)]
    texts[777] += SECRETS["github"][1]
    pq.write_table(pa.table({"text": texts}), tmp_path / "x.parquet", row_group_size=100)
    assert "x.parquet, row 777, column text: GitHub token" not in refusal_or_nothing(
        tmp_path
    )  # glued to a word it is none
    texts[777] = "text " + SECRETS["github"][1]
    pq.write_table(pa.table({"text": texts}), tmp_path / "x.parquet", row_group_size=100)
    assert "x.parquet, row 777, column text: GitHub token" in refusal(tmp_path)


def refusal_or_nothing(root: Path) -> str:
    try:
        check_secrets(items(root), SEARCH)
    except GenselectError as error:
        return str(error)
    return ""


def test_it_is_found_in_compressed_files_and_archives(tmp_path: Path) -> None:
    what, text = SECRETS["anthropic"]
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(f"one\n{text}\n".encode()))
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as tar:
        for name, content in (("clean.txt", b"clean"), ("deep/run.log", f"x\ny\n{text}\n".encode())):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    with zipfile.ZipFile(tmp_path / "c.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{text}.npy", b"numbers")
    said = refusal(tmp_path)
    assert f"a.log.gz, line 2: {what}" in said
    assert f"b.tar.gz, member 2, line 3: {what}" in said
    assert f"c.npz, the name of member 1: {what}" in said
    assert text not in said


def test_it_is_found_where_a_large_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genselect.publishing.readable._BLOCK", 1000)
    monkeypatch.setattr("genselect.publishing.readable._OVERLAP", 200)
    what, text = SECRETS["huggingface"]
    line = "x" * 48 + "\n"
    for before in range(940, 1000, 7):
        (tmp_path / "x.log").write_text(line * 40 + " " * (before % 49) + text + "\n" + line)
        said = refusal(tmp_path)
        assert f"x.log, line 41: {what}" in said
        assert "1 place(s)" in said


def test_the_environments_own_tokens_are_found_by_value_in_every_writing(tmp_path: Path) -> None:
    environment = {
        "HF_TOKEN": "an old form of token",
        "MY_API_KEY": 'quote" and slash/ü',
        "SSH_PASSWORD": "hunter2",  # too short to be told from a word
        "SOME_KEY": str(tmp_path),  # a path, not a secret
        "PATH": "/usr/bin:/bin",
    }
    search = SecretSearch(own_secrets(environment))
    (tmp_path / "a.json").write_text(json.dumps({"x": environment["MY_API_KEY"]}))
    (tmp_path / "b.txt").write_text(
        f"url?key=quote%22%20and%20slash%2F%C3%BC\n{environment['PATH']} hunter2 {tmp_path}\n"
    )
    pq.write_table(pa.table({"text": ["an old form of token"]}), tmp_path / "c.parquet")
    said = refusal(tmp_path, search)
    assert "a.json, line 1: the value of MY_API_KEY" in said
    assert "b.txt, line 1: the value of MY_API_KEY" in said
    assert "c.parquet, row 0, column text: the value of HF_TOKEN" in said
    assert "3 place(s)" in said


def test_tokens_that_the_hubs_client_and_netrc_keep_count_as_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password keptbynetrc1\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("genselect.publishing.secrets.get_token", lambda: "kept by the client")
    assert set(own_secrets({}).values()) == {"keptbynetrc1", "kept by the client"}


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_is_no_false_alarm(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.log").write_text(f"before\n{text}\nafter\n")
    pq.write_table(pa.table({"text": [text, text]}), tmp_path / "x.parquet")
    check_secrets(items(tmp_path), SEARCH)


def test_strings_that_only_together_look_like_a_secret_are_none(tmp_path: Path) -> None:
    what, text = SECRETS["netrc"]
    assert what in refusal_of_text(tmp_path / "one", text)
    pq.write_table(pa.table({"text": text.splitlines()}), tmp_path / "x.parquet")
    check_secrets(items(tmp_path)[-1:], SEARCH)


def refusal_of_text(folder: Path, text: str) -> str:
    folder.mkdir()
    (folder / "x.txt").write_text(text)
    return refusal(folder)


@pytest.mark.parametrize("damaged", [b"PAR1 and no more", b"\x1f\x8b\x08 no gzip", b"PK\x03\x04 no zip"])
def test_what_cannot_be_looked_into_is_not_published(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "x").write_bytes(damaged)
    with pytest.raises(GenselectError, match="cannot be looked into"):
        check_secrets(items(tmp_path), SEARCH)


def test_archives_in_archives_are_opened_only_so_deep(tmp_path: Path) -> None:
    content = SECRETS["github"][1].encode()
    for _ in range(3):
        content = gzip.compress(content)
    (tmp_path / "x.gz").write_bytes(content)
    assert "GitHub token" in refusal(tmp_path)
    (tmp_path / "x.gz").write_bytes(gzip.compress(gzip.compress(gzip.compress(content))))
    with pytest.raises(GenselectError, match="deep"):
        check_secrets(items(tmp_path), SEARCH)


def test_a_planted_secret_stops_the_staging_and_a_clean_tree_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = small_results(tmp_path / "results")
    publish(mini(), results)
    monkeypatch.setenv("WANDB_API_KEY", "a key of this machine alone")
    with (results / "runs/formal/attempts/2.log").open("a") as log:
        log.write("login with a key of this machine alone\n")
    with pytest.raises(GenselectError) as refused:
        publish(mini(), results)
    assert "runs/formal/attempts/2.log, line 2: the value of WANDB_API_KEY" in str(refused.value)
    assert "this machine alone" not in str(refused.value)
    publish(mini(leave_out=["runs/formal/attempts/2.log"]), results)
    # A title goes onto the front page.
    with pytest.raises(GenselectError, match=r"README\.md, line \d+: Hugging Face token"):
        publish(
            mini(
                title="by " + SECRETS["huggingface"][1],
                leave_out=["runs/formal/attempts/2.log", "data/mini/config.yaml"],
            ),
            results,
        )
