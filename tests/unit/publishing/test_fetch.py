"""Fetching a published experiment: everything checked, nothing of the receiver's overwritten, nothing half-written."""

import dataclasses
import io
import json
import os
import tarfile

import pytest
from hub_stub import OWNER, READER, TOKEN, Fault, Hub
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from published_tree import contents, pack, small_files, write_tree

from genselect.errors import GenselectError
from genselect.publishing.fetch import fetch_from_folder, fetch_from_hub
from genselect.publishing.hub import publish_to_hub
from genselect.publishing.patience import Patience
from genselect.publishing.publication import FILE, read_publication
from genselect.publishing.repository import PARTIAL

REPOSITORY = f"{OWNER}/experiment"
QUICK = Patience(tries=3, first_s=0.01, longest_s=0.05)
FOLDER = "runs/smoke/proofs"
MEMBERS = {f"step_{step}.json": b'{"proof": %d}\n' % step for step in range(5)} | {"deep/er.json": b"{}"}


@pytest.fixture
def files():
    return small_files()


@pytest.fixture
def tree(tmp_path, files):
    """A published tree with one packed folder."""
    content, archive = pack(tmp_path, FOLDER, MEMBERS)
    return write_tree(tmp_path / "tree", files | {archive.path: content}, archives=[archive])


@pytest.fixture
def results(tmp_path):
    return tmp_path / "clone" / "results"


@pytest.fixture
def wanted(files):
    """What a fetch makes of it, the record apart."""
    placed = {path: content for path, content in files.items() if path != "README.md"}
    return placed | {f"{FOLDER}/{path}": content for path, content in MEMBERS.items()}


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    disable_progress_bars()
    made = Hub()
    yield made
    made.close()
    enable_progress_bars()


@pytest.fixture
def fetch(hub, results, tree):
    """Publish the tree, and fetch it back."""
    receipt = publish_to_hub(tree, REPOSITORY, token=TOKEN, endpoint=hub.endpoint, patience=QUICK)
    hub.requests.clear()

    def run(revision=receipt.commit, **options):
        options = {"token": READER, "endpoint": hub.endpoint, "patience": QUICK} | options
        return fetch_from_hub(REPOSITORY, revision, results, **options)

    run.commit = receipt.commit
    return run


def placed(results):
    """Content by path, without the record of the fetch."""
    return {path: content for path, content in contents(results).items() if not path.startswith("publication/")}


def downloads(hub):
    return sorted(
        line.rpartition("/resolve/")[2].split("/", 1)[1] for line in hub.requests if line.startswith("GET /datasets")
    )


def test_what_was_published_is_fetched_back_equal(fetch, hub, results, wanted, tree):
    fetched = fetch()
    assert placed(results) == wanted
    assert fetched.placed == len(wanted)
    home = results / "publication" / "mini" / "fetched"
    assert (home / "README.md").read_bytes() == (tree / "README.md").read_bytes()
    assert read_publication(home) == read_publication(tree)
    record = json.loads((home / "fetched.json").read_text())
    assert (record["repository"], record["commit"]) == (REPOSITORY, hub.repo().head)
    assert sorted(path.name for path in results.iterdir()) == ["data", "publication", "runs"]


def test_a_folder_is_fetched_too_and_shares_no_file_with_results(tree, results, wanted):
    before = contents(tree)
    assert fetch_from_folder(tree, results).placed == len(wanted)
    assert placed(results) == wanted
    with (results / "runs/formal/potential/step_1.json").open("ab") as handle:
        handle.write(b"more")
    assert contents(tree) == before


def test_every_file_has_one_time(fetch, results):
    fetch()
    times = {
        path.stat().st_mtime_ns for path in results.rglob("*") if path.is_file() and "publication" not in path.parts
    }
    assert len(times) == 1


def test_a_second_fetch_downloads_nothing_and_leaves_what_was_made_meanwhile_newer(fetch, hub, results, wanted):
    fetch()
    model, trained = results / "models/mini/config.json", results / "runs/further/done.json"
    for path in (model, trained):
        path.parent.mkdir(parents=True)
        path.write_text("made meanwhile")
    made = trained.stat().st_mtime_ns
    os.utime(results / "data/mini/empty.txt", (1, 1))
    hub.requests.clear()
    assert fetch().placed == 0
    assert set(downloads(hub)) == {FILE, "README.md"}
    assert {path: content for path, content in placed(results).items() if path in wanted} == wanted
    # The base model is no newer than what was made from it; the run made from what was fetched is no older than that.
    times = {(results / path).stat().st_mtime_ns for path in [*wanted, "models/mini/config.json"]}
    assert len(times) == 1
    assert times.pop() < made == trained.stat().st_mtime_ns


def test_by_default_the_newest_commit_and_by_revision_an_earlier_one(fetch, hub, results, tree, tmp_path):
    files = small_files() | {"data/mini/empty.txt": b"not any more"}
    write_tree(tree, files)
    publish_to_hub(tree, REPOSITORY, token=TOKEN, endpoint=hub.endpoint, patience=QUICK)
    assert fetch().commit == fetch.commit
    assert (results / "data/mini/empty.txt").read_bytes() == b""
    other = fetch_from_hub(REPOSITORY, None, tmp_path / "other", token=READER, endpoint=hub.endpoint, patience=QUICK)
    assert other.commit == hub.repo().head != fetch.commit
    assert (tmp_path / "other/data/mini/empty.txt").read_bytes() == b"not any more"


def test_a_file_of_the_receivers_is_named_and_nothing_is_touched(fetch, hub, results):
    mine = results / "runs/formal/potential/step_2.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(
        GenselectError, match=r"with another content than was published: runs/formal/potential/step_2\.json"
    ) as raised:
        fetch()
    assert "--keep keeps them" in raised.value.hint
    assert placed(results / "runs") == {"formal/potential/step_2.json": b"mine"}


def test_keep_keeps_it_and_fetches_the_rest(fetch, results, wanted):
    mine, packed = results / "runs/formal/potential/step_2.json", results / FOLDER / "step_3.json"
    for path in (mine, packed):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"mine")
        os.utime(path, (5, 5))
    fetched = fetch(keep=True)
    kept = {"runs/formal/potential/step_2.json": b"mine", f"{FOLDER}/step_3.json": b"mine"}
    assert placed(results) == wanted | kept
    assert set(fetched.kept) == set(kept)
    assert mine.stat().st_mtime == packed.stat().st_mtime == 5


def test_a_conflict_inside_an_archive_is_refused_before_anything_is_placed(fetch, results):
    packed = results / FOLDER / "step_3.json"
    packed.parent.mkdir(parents=True)
    packed.write_bytes(b"mine")
    with pytest.raises(GenselectError, match=r"runs/smoke/proofs/step_3\.json"):
        fetch()
    assert placed(results / "runs") == {"smoke/proofs/step_3.json": b"mine"}


def test_a_cut_download_goes_on(fetch, hub, results, wanted):
    hub.faults = [Fault("GET", "step_3.parquet", times=99, reset_after=0)]
    with pytest.raises(GenselectError, match="cannot be reached, or the connection broke") as raised:
        fetch()
    assert "it goes on where it stopped" in raised.value.hint
    assert not (results / "runs").exists()
    had = set(downloads(hub)) - {FILE, "runs/formal/records/step_3.parquet"}
    assert len(had) > 5
    hub.requests.clear()
    hub.faults.clear()
    fetch()
    assert placed(results) == wanted
    assert not had & set(downloads(hub))


def test_a_cut_placing_goes_on_and_leaves_nothing_behind(fetch, hub, results, wanted, monkeypatch):
    from genselect.publishing import placing

    take_name, named = placing.Path.replace, []

    def cut(path, target):
        if len(named) == 5:
            leftover = target.with_name(f".{target.name}.0123abcd.tmp")
            leftover.write_bytes(b"{")
            raise KeyboardInterrupt
        named.append(target)
        return take_name(path, target)

    monkeypatch.setattr(placing.Path, "replace", cut)
    with pytest.raises(KeyboardInterrupt):
        fetch()
    monkeypatch.setattr(placing.Path, "replace", take_name)
    hub.requests.clear()
    assert fetch().placed == len(wanted) - 5
    assert set(downloads(hub)) == set()
    assert placed(results) == wanted
    assert sorted(path.name for path in results.iterdir()) == ["data", "publication", "runs"]


def test_many_files_are_downloaded_as_a_snapshot_without_what_is_not_ours(fetch, hub, results, tree):
    write_tree(tree, small_files(steps=70))
    publish_to_hub(tree, REPOSITORY, token=TOKEN, endpoint=hub.endpoint, patience=QUICK)
    hub.add_commit(hub.repo(), {**hub.repo().tree, "their[1].txt": b"x"})
    hub.requests.clear()
    assert fetch(revision=None).placed == 74
    assert len(list((results / "runs/formal/potential").iterdir())) == 70
    assert "their[1].txt" not in downloads(hub)
    assert ".gitattributes" not in downloads(hub)


def test_an_upload_under_way_is_no_publication(fetch, hub, results):
    hub.add_commit(hub.repo(), {**hub.repo().tree, PARTIAL: b"{}"})
    with pytest.raises(GenselectError, match="its upload is not finished") as raised:
        fetch(revision=None)
    assert "--revision" in raised.value.hint
    assert fetch().placed


def test_something_else_is_no_publication(hub, results):
    hub.add_repo(REPOSITORY, files={"data.parquet": b"x"})
    with pytest.raises(GenselectError, match=r"holds no publication\.json"):
        fetch_from_hub(REPOSITORY, None, results, token=READER, endpoint=hub.endpoint, patience=QUICK)


@pytest.mark.parametrize(
    ("options", "words", "hint"),
    [
        ({"token": None}, r"hidden from this account \(401\)", "HF_TOKEN"),
        ({"token": "hf_wrong"}, r"does not know the token \(401\)", "HF_TOKEN"),
        (
            {"revision": "v9"},
            r"there is no such thing.*\(404\).*Invalid rev id: v9",
            "Check the repository and revision",
        ),
    ],
)
def test_a_refused_fetch(fetch, options, words, hint):
    with pytest.raises(GenselectError, match=words) as raised:
        fetch(**options)
    assert hint in raised.value.hint


def test_content_that_is_not_the_published_one(fetch, hub, results, monkeypatch):
    tree = dict(hub.repo().tree)
    tree["runs/formal/potential/step_4.json"] = b'{"step": 5}\n'
    hub.add_commit(hub.repo(), tree)
    with pytest.raises(GenselectError, match=r"runs/formal/potential/step_4\.json is not what was published") as raised:
        fetch(revision=None)
    assert "to fetch it anew" in raised.value.hint
    assert not (results / "runs").exists()


@pytest.mark.parametrize("path", ["../../outside.json", "/etc/outside.json", "a/../../outside.json", "a\\b", "./a"])
def test_a_path_that_leads_elsewhere_is_refused(tree, results, path):
    values = json.loads((tree / FILE).read_text())
    values["files"][0]["path"] = path
    (tree / FILE).write_text(json.dumps(values))
    with pytest.raises(GenselectError, match="which leads elsewhere or is none"):
        fetch_from_folder(tree, results)
    assert not results.exists()


def link(entries):
    info = tarfile.TarInfo("proofs/step_1.json")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    entries[1] = (info, b"")


def climb(entries):
    entries[0][0].name = "proofs/../../../outside.json"


def elsewhere(entries):
    entries[0][0].name = "records/step_1.parquet"


def twice(entries):
    entries.append(entries[0])


def other(entries):
    entries[2] = (entries[2][0], b"x" * entries[2][0].size)


def fewer(entries):
    del entries[3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (link, r"step_1\.json is no file of runs/smoke/proofs"),
        (climb, "leads elsewhere"),
        (elsewhere, "is no file of runs/smoke/proofs"),
        (twice, "is in it twice"),
        (other, "its 6 files are not the 6 that were packed"),
        (fewer, "its 5 files are not the 6 that were packed"),
    ],
)
def test_an_archive_with_anything_else_in_it(tmp_path, files, results, change, words):
    content, archive = pack(tmp_path, FOLDER, MEMBERS, change=change)
    tree = write_tree(tmp_path / "tree", files | {archive.path: content}, archives=[archive])
    with pytest.raises(GenselectError, match=words):
        fetch_from_folder(tree, results)
    assert not (results / "runs").exists()
    assert not list(tmp_path.rglob("outside.json"))


def test_a_damaged_archive(tmp_path, files, results):
    content, archive = pack(tmp_path, FOLDER, MEMBERS)
    tree = write_tree(tmp_path / "tree", files | {archive.path: content[:3000]}, archives=[archive])
    with pytest.raises(GenselectError, match="is not the archive that was published"):
        fetch_from_folder(tree, results)


def test_a_full_disk_is_told_before_the_download(fetch, hub, results, monkeypatch):
    usage = dataclasses.make_dataclass("usage", ["free"])
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(1000))
    with pytest.raises(GenselectError, match="are needed, and 1"):
        fetch()
    assert downloads(hub) == [FILE]


def test_the_program_fetches_and_says_how_to_go_on(script, tree, results):
    write_tree(tree, small_files() | {"data/mini/config.yaml": b"results: results\n"})
    done = script("fetch_publication", "--from", tree, "--into", results)
    assert done.returncode == 0, done.stderr
    assert f"17 files placed in {results}, every sum compared" in done.stderr
    assert f"go on with: snakemake -n report --configfile {results}/data/mini/config.yaml" in done.stderr
    (results / "data/mini/config.yaml").write_text("mine")
    done = script("fetch_publication", "--from", tree, "--into", results)
    assert done.returncode == 2
    assert "Hint: Fetch into another folder" in done.stderr


def test_the_helper_packs_what_tar_reads(tmp_path):
    content, _ = pack(tmp_path, FOLDER, MEMBERS)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert tar.getnames() == [f"proofs/{path}" for path in sorted(MEMBERS)]
