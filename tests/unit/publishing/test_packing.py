"""A tree with too many files: what is packed, that a tar holds what it stands for, and that the same files give the same tar."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import tarfile
from pathlib import Path

import pytest
from small_results import mini, publish, small_results

from genselect.errors import GenselectError
from genselect.publishing.contents import CONTENTS
from genselect.publishing.layout import make_plan
from genselect.publishing.packing import Item, Limits, Packing, choose_packing, write_archive
from genselect.publishing.unpack import unpack

ENTRY = CONTENTS[0]
LIMITS = Limits(file_bytes=10**12, archive_bytes=10**12, folder_entries=50)


def listed(files: dict[str, int], size: int = 10) -> list[Item]:
    """So many files in each folder."""
    return [
        Item(f"{folder}/step_{step:04d}.json", Path("nowhere"), size, ENTRY)
        for folder, count in sorted(files.items())
        for step in range(count)
    ]


def packed(
    files: dict[str, int], closed: list[str], max_files: int, **limits: int
) -> tuple[list[str], list[GenselectError]]:
    chosen = choose_packing(listed(files), closed, Limits(**{**LIMITS.__dict__, **limits}), max_files, own=2)
    return [packing.folder for packing in chosen[1]], chosen[2]


def test_nothing_is_packed_as_long_as_everything_fits() -> None:
    assert packed({"runs/a/records": 40, "runs/a/proofs": 40}, ["a"], 82) == ([], [])


def test_the_fullest_folders_of_finished_runs_are_packed_first_and_no_more_than_needed() -> None:
    files = {"runs/a/records": 30, "runs/a/proofs": 10, "runs/b/records": 20, "runs/open/records": 40, "data/mini": 20}
    assert packed(files, ["a", "b"], 122)[0] == []
    assert packed(files, ["a", "b"], 121)[0] == ["runs/a/records"]
    assert packed(files, ["a", "b"], 92) == (["runs/a/records", "runs/b/records"], [])
    # Folders in a packed one go with it.
    deep = {"runs/a/superseded/attempt_1/records": 10, "runs/a/superseded/attempt_2/records": 10}
    assert packed(deep, ["a"], 10) == (["runs/a/superseded"], [])


def test_a_folder_with_too_many_entries_is_packed_even_when_the_tree_is_small() -> None:
    assert packed({"runs/a/records": 51, "runs/a/proofs": 50}, ["a"], 10_000) == (["runs/a/records"], [])


def test_what_cannot_be_made_to_fit_is_refused_with_the_numbers_and_the_way_out() -> None:
    folders, (full, many) = packed({"runs/open/records": 60, "runs/a/records": 40}, ["a"], 50)
    assert folders == ["runs/a/records"]
    assert "runs/open/records (60)" in full.message
    assert "more than 50 entries" in full.message
    assert "63 files, 1 folder(s) of finished runs packed already, and publish.max_files is 50" in many.message
    assert "runs/open/records (60)" in many.message
    assert "publish.leave_out" in many.hint
    # A tar may not become larger than a file should be.
    assert packed({"runs/a/records": 40}, ["a"], 10, archive_bytes=399)[0] == []


def test_runs_that_are_open_are_never_packed(tmp_path: Path) -> None:
    results = small_results(tmp_path / "results")
    (results / "runs/formal/done.json").unlink()
    plan = make_plan(mini(max_files=60), results).targets["hub"]
    assert plan.packed
    assert not [packing.folder for packing in plan.packed if packing.folder.startswith("runs/formal/")]


def folder_of_files(root: Path, count: int = 30) -> Packing:
    draw = random.Random(3)
    items = []
    for number in range(count):
        name = f"runs/a/records/{'ü' * (number % 3)}{'deep/' * (number % 4)}{'long_' * 25}{number}.bin"
        path = root / "results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(number * 37))
        items.append(Item(name, path, number * 37, ENTRY))
    return Packing("runs/a/records", tuple(sorted(items, key=lambda item: item.path)))


def test_the_same_files_give_the_same_tar_whenever_and_by_whomever_it_is_made(tmp_path: Path) -> None:
    packing = folder_of_files(tmp_path)
    first = write_archive(packing, tmp_path / "one")
    for number, item in enumerate(packing.items):
        os.utime(item.source, (number, number))
        item.source.chmod(0o600)
    assert write_archive(packing, tmp_path / "two") == first
    assert (tmp_path / "one" / first.path).read_bytes() == (tmp_path / "two" / first.path).read_bytes()


def test_a_tar_gives_its_folder_again_with_ordinary_tools(tmp_path: Path) -> None:
    packing = folder_of_files(tmp_path)
    archive = write_archive(packing, tmp_path / "tree")
    assert (archive.path, archive.folder, archive.members) == ("runs/a/records.tar", "runs/a/records", 30)
    assert archive.bytes == packing.bytes
    subprocess.run(["tar", "-xf", "records.tar"], cwd=tmp_path / "tree/runs/a", check=True)
    compared = ["diff", "-r", tmp_path / "results/runs/a/records", tmp_path / "tree/runs/a/records"]
    assert subprocess.run(compared, check=False, capture_output=True).returncode == 0
    lines = sorted(
        (path.relative_to(tmp_path / "tree/runs/a/records").as_posix(), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in (tmp_path / "tree/runs/a/records").rglob("*")
        if path.is_file()
    )
    listing = "".join(f"{digest}  {path}\n" for path, digest in lines)
    assert hashlib.sha256(listing.encode()).hexdigest() == archive.members_sha256


def test_a_tar_that_reads_back_otherwise_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packing = folder_of_files(tmp_path)
    whole = tarfile.TarFile.close

    def close(tar: tarfile.TarFile) -> None:
        whole(tar)
        if tar.mode == "w":
            path = Path(str(tar.name))
            content = bytearray(path.read_bytes())
            content[-2000] ^= 1  # a bit of the last member, as a bad disk would
            path.write_bytes(content)

    with monkeypatch.context() as patched:
        patched.setattr(tarfile.TarFile, "close", close)
        with pytest.raises(GenselectError, match="is not what was packed"):
            write_archive(packing, tmp_path / "tree")
    assert not list((tmp_path / "tree").rglob("*.tar"))


@pytest.mark.parametrize("change", ["longer", "shorter"])
def test_a_file_that_changes_meanwhile_is_told(tmp_path: Path, change: str) -> None:
    packing = folder_of_files(tmp_path)
    file = packing.items[-1].source
    content = file.read_bytes()
    file.write_bytes(content + b"more" if change == "longer" else content[:-1])
    with pytest.raises(GenselectError, match="changed while it was packed"):
        write_archive(packing, tmp_path / "tree")


def test_a_packed_tree_accounts_for_every_byte_and_unpacks_to_what_was_there(tmp_path: Path) -> None:
    results = small_results(tmp_path / "results")
    for run in ("smoke", "overfit", "formal"):
        for step in range(10, 310):
            for kind in ("potential", "proofs"):
                (results / f"runs/{run}/{kind}/step_{step}.json").write_text(f"{run} {kind} {step}\n" * (step % 7))
    config = mini(max_files=600)
    staged = publish(config, results)
    hub = results / "publication/mini/hub"
    publication = staged["hub"]
    assert sum(path.is_file() for path in hub.rglob("*")) == make_plan(config, results).targets["hub"].files <= 600
    assert len(publication.archives) == 5
    sizes = {path.relative_to(results).as_posix(): path.stat().st_size for path in results.rglob("*") if path.is_file()}
    sizes = {path: size for path, size in sizes.items() if not path.startswith("publication/")}
    plain = [file for file in publication.files if file.kind not in ("archive", "front_page")]
    assert sum(sizes.values()) == (
        sum(file.bytes for file in plain)
        + sum(archive.bytes for archive in publication.archives)
        + sum(entry.bytes for entry in publication.left_out)
    )
    assert len(sizes) == (
        len(plain)
        + sum(archive.members for archive in publication.archives)
        + sum(entry.files for entry in publication.left_out)
    )
    for archive in publication.archives:
        unpack(hub / archive.path, archive, tmp_path / "unpacked")
        compared = ["diff", "-r", results / archive.folder, tmp_path / "unpacked" / archive.folder]
        assert subprocess.run(compared, check=False, capture_output=True).returncode == 0
        assert not (hub / archive.folder).exists()
    # The reading copy has no archives: such folders are told, and are on the Hub.
    copy = staged["reading_copy"]
    assert not copy.archives
    assert not list((results / "publication/mini/reading_copy").rglob("*.tar"))
    told = {entry.what: entry.files for entry in copy.left_out if "packed" in entry.why}
    assert told
    assert set(told) <= {f"{archive.folder}/**" for archive in publication.archives}
    assert sum(path.is_file() for path in (results / "publication/mini/reading_copy").rglob("*")) <= 600
