"""Publishing into a folder, receipts, and the program that writes them."""

import errno
import json
import os
import subprocess
import sys

import pytest
from hub_stub import OWNER, TOKEN, Hub
from published_tree import contents, small_files, write_tree

from genselect.errors import GenselectError
from genselect.publishing.local import publish_locally
from genselect.publishing.publication import FILE
from genselect.publishing.receipt import read_receipt, write_receipt
from genselect.publishing.sums import check_tree

REPOSITORY = f"{OWNER}/experiment"


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path / "hub", small_files())


@pytest.fixture
def to(tmp_path):
    return tmp_path / "elsewhere"


def test_by_default_the_staged_tree_is_the_publication(tree):
    before = contents(tree)
    receipt = publish_locally(tree)
    assert (receipt.to, receipt.folder, receipt.files) == ("folder", str(tree), 18)
    assert receipt.repository is receipt.commit is receipt.visibility is None
    assert set(receipt.read_back) == set(before)
    assert contents(tree) == before


def test_a_staged_tree_that_was_touched_is_refused(tree):
    path = tree / "runs/formal/records/step_1.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(GenselectError, match=r"step_1\.parquet has another content") as raised:
        publish_locally(tree)
    assert "stage it again" in raised.value.hint


def test_the_tree_sum_is_that_of_sha256sum(tree, tmp_path):
    listed = subprocess.run(
        "find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum",
        shell=True, cwd=tree, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert publish_locally(tree).tree_sha256 == listed.stdout.split()[0]


def test_a_copy_is_equal_and_a_second_one_copies_nothing(tree, to):
    assert publish_locally(tree, to).uploaded.files == 18
    assert contents(to) == contents(tree)
    times = {path: path.stat().st_mtime_ns for path in to.rglob("*")}
    assert publish_locally(tree, to).uploaded.files == 0
    assert {path: path.stat().st_mtime_ns for path in to.rglob("*")} == times


def test_a_copy_is_brought_up_to_date(tree, to):
    publish_locally(tree, to)
    (to / "notes.txt").write_text("mine")
    files = small_files(steps=11) | {"README.md": b"---\n---\n# Other\n"}
    write_tree(tree, files)
    receipt = publish_locally(tree, to)
    # The front page and the list changed, a step went.
    assert (receipt.uploaded.files, receipt.uploaded.deleted) == (2, 1)
    assert contents(to) == contents(tree) | {"notes.txt": b"mine"}
    assert receipt.not_ours == ("notes.txt",)


@pytest.mark.parametrize("files", range(18))
def test_a_cut_copy_goes_on_and_is_no_publication_until_then(tree, to, monkeypatch, files):
    from genselect.publishing import placing

    take_name, named = placing.Path.replace, []

    def cut(path, target):
        if len(named) == files:
            # As a kill would: a file under its temporary name.
            (to / "runs/formal/potential/.step_9.json.0123abcd.tmp").write_bytes(b"{")
            raise KeyboardInterrupt
        named.append(target)
        return take_name(path, target)

    monkeypatch.setattr(placing.Path, "replace", cut)
    with pytest.raises(KeyboardInterrupt):
        publish_locally(tree, to)
    with pytest.raises(GenselectError, match="no published experiment"):
        check_tree(to)
    monkeypatch.setattr(placing.Path, "replace", take_name)
    assert publish_locally(tree, to).uploaded.files == 18 - files
    assert contents(to) == contents(tree)


def test_a_cut_update_is_no_publication_until_it_is_whole(tree, to, monkeypatch):
    from genselect.publishing import placing

    publish_locally(tree, to)
    write_tree(tree, small_files(seed=2))
    monkeypatch.setattr(placing.os, "sync", lambda: [].pop())
    with pytest.raises(IndexError):
        publish_locally(tree, to)
    monkeypatch.undo()
    with pytest.raises(GenselectError, match="no published experiment"):
        check_tree(to)
    assert publish_locally(tree, to).uploaded.files == 4  # three large files and the list
    assert contents(to) == contents(tree)


def test_names_are_given_once_the_contents_are_on_disk_and_are_on_disk_themselves(tree, to, monkeypatch):
    from genselect.publishing import placing

    # What a power cut would leave at the latest of these moments: the contents without a name, then all but the list, ...
    reached_disk = []
    monkeypatch.setattr(
        placing.os,
        "sync",
        lambda: reached_disk.append(len([path for path in contents(to) if not path.endswith(".tmp")])),
    )
    publish_locally(tree, to)
    assert reached_disk == [0, 17, 17, 18]


def test_a_disk_that_fills_up_leaves_no_file_behind(tree, to, monkeypatch):
    from genselect.publishing import placing

    def full(source, target):
        if target.name.startswith(".step_3.parquet."):
            target.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return copy(source, target)

    copy = placing.shutil.copyfile
    monkeypatch.setattr(placing.shutil, "copyfile", full)
    with pytest.raises(
        GenselectError, match=r"step_3\.parquet: could not be written: No space left on device"
    ) as raised:
        publish_locally(tree, to)
    assert "nothing half-written was left" in raised.value.hint
    assert contents(to) == {}


def test_a_folder_of_others_is_left_alone(tree, to, tmp_path):
    to.mkdir()
    (to / "thesis.tex").write_text("years of work")
    with pytest.raises(GenselectError, match=r"holds other files \(thesis\.tex\) and no publication\.json"):
        publish_locally(tree, to)
    other = write_tree(tmp_path / "other", small_files(), name="other")
    with pytest.raises(GenselectError, match="holds the publication of other, and this is mini"):
        publish_locally(tree, other)


def test_every_receipt_is_kept(tree, tmp_path):
    path = tmp_path / "receipt.json"
    first = publish_locally(tree)
    write_receipt(path, first)
    write_receipt(path, first)
    assert read_receipt(path) == first
    kept = sorted((tmp_path / "receipts").iterdir())
    assert [read_receipt(one) for one in kept] == [first, first]
    path.write_text('{"schema_version": 9}')
    with pytest.raises(GenselectError, match="is not a receipt of this version"):
        read_receipt(path)


def test_the_program_publishes_in_place_and_writes_the_receipt_last(script, tree, tmp_path):
    receipt = tmp_path / "receipt.json"
    (tree / "extra.txt").write_text("?")
    done = script("publish", "--tree", tree, "--receipt", receipt)
    assert done.returncode == 2
    assert "extra.txt is not listed" in done.stderr
    assert not receipt.exists()
    (tree / "extra.txt").unlink()
    done = script("publish", "--tree", tree, "--receipt", receipt)
    assert done.returncode == 0, done.stderr
    assert read_receipt(receipt).folder == str(tree)


def test_the_program_publishes_on_the_hub_with_the_token_of_the_environment(tree, tmp_path, repository):
    hub = Hub()
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment |= {
        "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": TOKEN,
    }  # fmt: skip
    receipt = tmp_path / "receipt.json"
    command = [sys.executable, repository / "workflow/scripts/publish.py", "--tree", tree, "--repository", REPOSITORY]
    try:
        done = subprocess.run(
            [*command, "--receipt", receipt], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
    finally:
        hub.close()
    assert done.returncode == 0, done.stderr
    written = json.loads(receipt.read_text())
    assert (written["repository"], written["commit"], written["visibility"]) == (REPOSITORY, hub.repo().head, "private")
    assert set(written["client"]) == {"huggingface_hub", "hf_xet"}
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert TOKEN not in receipt.read_text() + done.stderr + done.stdout
    assert "%|" not in done.stderr  # no progress bars in a log
    assert FILE in hub.repo().tree
