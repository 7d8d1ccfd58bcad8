"""Publishing with the real Hub client against a stub of the Hub on the loopback, its limits switched on."""

import dataclasses
import json
import logging
import multiprocessing
import random

import pytest
from hub_stub import OWNER, READER, TOKEN, Fault, Hub
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from published_tree import contents, small_files, write_tree

from genselect.errors import GenselectError
from genselect.publishing import upload
from genselect.publishing.hub import publish_to_hub
from genselect.publishing.patience import Patience
from genselect.publishing.publication import FILE, FRONT_PAGE
from genselect.publishing.repository import PARTIAL

REPOSITORY = f"{OWNER}/experiment"
QUICK = Patience(tries=4, first_s=0.02, longest_s=0.1)
#: So that a small tree takes several commits.
COMMIT_FILES = 6
COMMIT = r"/commit/main$"


@pytest.fixture
def hub(monkeypatch):
    # The stub speaks LFS, not Xet. Set here and not in the environment: another test may have imported the client before.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(upload, "LIMITS", {"hub": dataclasses.replace(upload.LIMITS["hub"], commit_files=COMMIT_FILES)})
    # Nobody waits here: neither the client between two tries of its own, nor we.
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr("genselect.publishing.hub._SAMPLE_FILES", 4)
    disable_progress_bars()
    made = Hub()
    made.waits = waits
    made.limits.commit_files = COMMIT_FILES
    yield made
    made.close()
    enable_progress_bars()


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path / "tree", small_files())


@pytest.fixture
def publish(hub, tree):
    def run(**options):
        return publish_to_hub(
            options.pop("tree", tree),
            REPOSITORY,
            endpoint=hub.endpoint,
            **{"token": TOKEN, "patience": QUICK} | options,
        )

    return run


def published(hub):
    """What the repository holds, the Hub's own file apart."""
    return {path: content for path, content in hub.repo().tree.items() if path != ".gitattributes"}


def refused(publish, words, hint, **options):
    with pytest.raises(GenselectError, match=words) as raised:
        publish(**options)
    assert hint in raised.value.hint
    assert TOKEN not in str(raised.value)
    return raised.value


def test_a_new_repository_is_private_and_holds_the_tree_in_commits_of_the_limit(publish, hub, tree):
    receipt = publish()
    assert published(hub) == contents(tree)
    assert hub.repo().private
    sizes = [len(tree) for _, tree in hub.repo().commits]
    # Sixteen files, six a commit, the first with the mark; then front page and list, without it.
    assert sizes == [1, 7, 13, 18, 19]
    assert (receipt.repository, receipt.commit, receipt.visibility) == (REPOSITORY, hub.repo().head, "private")
    assert (receipt.files, receipt.uploaded.files, receipt.uploaded.commits) == (18, 18, 4)
    assert receipt.bytes == sum(map(len, contents(tree).values()))
    assert {FILE, FRONT_PAGE} < set(receipt.read_back)
    assert hub.tokens == {f"Bearer {TOKEN}"}


def test_list_and_front_page_come_last_and_the_mark_stands_until_then(publish, hub):
    publish()
    *between, last = [tree for _, tree in hub.repo().commits[1:]]
    for tree in between:
        assert PARTIAL in tree
        assert FILE not in tree
        assert FRONT_PAGE not in tree
    assert PARTIAL not in last
    assert json.loads(between[0][PARTIAL])["name"] == "mini"


def test_a_tree_that_fits_is_one_commit(publish, hub, tree):
    write_tree(tree, small_files(steps=2, large=1))
    assert publish().uploaded.commits == 1
    assert len(hub.repo().commits) == 2


def test_a_second_publish_uploads_nothing(publish, hub):
    first = publish()
    before = len(hub.uploads())
    second = publish()
    assert hub.uploads()[before:] == []
    assert (second.commit, second.tree_sha256) == (first.commit, first.tree_sha256)
    assert dataclasses.astuple(second.uploaded) == (0, 0, 0, 0)


def test_only_what_changed_is_sent_and_what_is_gone_is_deleted(publish, hub, tree):
    publish()
    files = small_files()
    del files["runs/formal/potential/step_3.json"], files["runs/formal/records/step_2.parquet"]
    files["runs/formal/potential/step_1.json"] = b"other\n"
    write_tree(tree, files)
    receipt = publish()
    assert published(hub) == contents(tree)
    assert (receipt.uploaded.files, receipt.uploaded.deleted, receipt.uploaded.commits) == (2, 2, 1)


def test_more_deletions_than_a_commit_takes(publish, hub, tree):
    publish()
    write_tree(tree, small_files(steps=1, large=1))
    assert publish().uploaded.deleted == 13
    assert published(hub) == contents(tree)


def test_files_of_others_are_left_and_named(publish, hub, tree):
    publish()
    theirs = {"discussion/note.md": b"well done"}
    hub.add_commit(hub.repo(), {**hub.repo().tree, **theirs})
    write_tree(tree, small_files(steps=3))
    assert publish().not_ours == ("discussion/note.md",)
    assert published(hub) == contents(tree) | theirs


def test_a_file_of_somebodys_in_the_way_is_refused_by_name(publish, hub, tree):
    publish()
    hub.add_commit(hub.repo(), {**hub.repo().tree, "runs/formal/new.json": b"mine"})
    write_tree(tree, small_files() | {"runs/formal/new.json": b"ours"})
    refused(publish, r"no publication of ours put there: runs/formal/new\.json", "Rename or delete it there")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"thesis.pdf": b"years"}, r"exists and holds other things \(thesis\.pdf\), and no publication of genselect"),
        ({FILE: None}, "holds the publication of other, and this is mini"),
        ({PARTIAL: b'{"name": "other", "paths": []}'}, "holds the publication of other, and this is mini"),
    ],
)
def test_somebody_elses_repository_is_refused(publish, hub, tmp_path, files, words):
    if FILE in files:
        files = contents(write_tree(tmp_path / "other", small_files(), name="other"))
    hub.add_repo(REPOSITORY, files=files)
    refused(publish, words, "publish.repository")
    assert hub.uploads() == []


def test_an_empty_repository_made_by_hand_is_taken(publish, hub):
    hub.add_repo(REPOSITORY)
    assert publish().visibility == "private"


def test_public_only_by_name(publish, hub):
    publish()
    assert hub.repo().private
    assert publish(public=True).visibility == "public"
    assert not hub.repo().private


def test_public_only_at_the_end(publish, hub):
    publish(public=True)
    made = next(index for index, line in enumerate(hub.requests) if "/settings" in line)
    assert hub.requests[:made]
    assert not [line for line in hub.requests[made:] if "/commit/" in line or "/lfs/" in line]


def test_a_public_repository_is_neither_filled_nor_hidden_unasked(publish, hub):
    hub.add_repo(REPOSITORY, private=False)
    refused(publish, "is public, and publish.public is false", "publish.public: true")
    assert not hub.repo().private
    assert hub.uploads() == []
    assert publish(public=True).visibility == "public"


def test_an_edited_or_cut_tree_is_refused(publish, hub, tree):
    (tree / "README.md").write_bytes(b"---\nlicense: cc-by-4.0\n---\n# An Experiment\n")
    refused(publish, r"README\.md: has another content than when it was staged", "Stage the tree again")
    (tree / "README.md").unlink()
    (tree / "extra.txt").write_text("?")
    refused(publish, r"README\.md is missing, extra\.txt is not listed", "stage it again")
    write_tree(tree, small_files(), target="reading_copy")
    refused(publish, "was staged as reading_copy", "hub")


def test_without_a_token_nothing_is_asked(publish, hub):
    refused(publish, "HF_TOKEN is not set", "written nowhere", token=None)
    assert hub.requests == []


@pytest.mark.parametrize(
    ("token", "words", "hint"),
    [
        ("hf_wrong", r"does not know the token \(401\)", "Put a valid one in HF_TOKEN"),
        (READER, r"may not do that \(403\): .*write token", "with the right to write to someone/experiment"),
    ],
)
def test_a_refused_token(publish, hub, token, words, hint):
    refused(publish, words, hint, token=token)
    assert hub.uploads() == []


def test_a_namespace_of_others(hub, tree):
    hub.add_repo("others/experiment")

    def publish():
        return publish_to_hub(tree, "others/experiment", token=TOKEN, endpoint=hub.endpoint, patience=QUICK)

    refused(publish, "exists, and is hidden from the token in HF_TOKEN", "or name another repository")
    del hub.repos["others/experiment"]
    refused(publish, r"may not do that \(403\): You don't have the rights", "write to others/experiment")


def test_storage_is_used_up(publish, hub):
    hub.limits.storage_bytes = 7000  # two of three
    refused(publish, r"no room for it \(403\): Private repository storage limit reached", "publish.leave_out")
    hub.limits.storage_bytes = 10**9
    publish()
    assert set(hub.received.values()) == {1}


def test_too_many_entries_in_a_folder(publish, hub):
    hub.limits.folder_entries = 8
    refused(publish, r"refuses it \(400\): too many entries in one folder \(limit 8\)", "lower publish.max_files")


def test_a_commit_that_is_too_large_is_made_smaller(publish, hub, tree, caplog):
    files = {f"runs/formal/attempts/{step}.log": bytes([65 + step]) * 2000 for step in range(8)}
    write_tree(tree, {"README.md": b"# x\n", **files})
    hub.limits.commit_bytes = 9000
    with caplog.at_level(logging.INFO, logger="genselect"):
        publish()
    assert published(hub) == contents(tree)
    assert "cannot take 6 files in one commit; from now on 3" in caplog.text


# What comes and goes: each ends with the same tree, and nothing is stored twice.
FAULTS = {
    "429 with Retry-After": [Fault("POST", COMMIT, status=429, headers={"Retry-After": "1"})],
    "429 with RateLimit": [Fault("POST", COMMIT, status=429, headers={"RateLimit": '"api";r=0;t=1'})],
    "503 on a commit": [Fault("POST", COMMIT, times=3, status=503)],
    "503 on creating": [Fault("POST", "/repos/create", times=2, status=503)],
    "503 on listing": [Fault("GET", "/tree/", times=2, status=503)],
    "503 on asking how": [Fault("POST", "/preupload/", times=2, status=503)],
    "500 in the storage": [Fault("PUT", "/lfs/", times=2, status=500)],
    "reset in a large file": [Fault("PUT", "/lfs/", times=2, reset_after=1500)],
    "reset in a commit": [Fault("POST", COMMIT, times=2, reset_after=100)],
    "a commit's answer lost": [Fault("POST", COMMIT, times=2, lose_answer=True)],
    "creation's answer lost": [Fault("POST", "/repos/create", lose_answer=True)],
    "reset on reading back": [Fault("GET", "/resolve/", times=2, reset_after=0)],
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_passes_is_waited_out(publish, hub, tree, name):
    hub.faults = [dataclasses.replace(fault) for fault in FAULTS[name]]
    receipt = publish()
    assert all(fault.times == 0 for fault in hub.faults)
    assert published(hub) == contents(tree)
    assert set(hub.received.values()) | set(hub.committed.values()) == {1}
    assert (receipt.uploaded.files, receipt.uploaded.commits) == (18, 4)


def test_the_answer_to_a_commit_with_deletions_is_lost(publish, hub, tree):
    publish()
    write_tree(tree, small_files(steps=10))
    hub.faults = [Fault("POST", COMMIT, lose_answer=True)]
    receipt = publish()
    assert published(hub) == contents(tree)
    assert (receipt.uploaded.files, receipt.uploaded.deleted, receipt.uploaded.commits) == (1, 2, 1)


def test_one_content_under_several_names_is_sent_once(publish, hub, tree):
    files = small_files(steps=1, large=1)
    same = files["runs/formal/records/step_1.parquet"]
    write_tree(tree, files | {"runs/smoke/records/step_1.parquet": same, "runs/smoke/records/step_2.parquet": same})
    publish()
    assert published(hub) == contents(tree)
    assert set(hub.received.values()) == {1}


def test_the_wait_that_the_hub_asks_for_is_kept(publish, hub, caplog):
    hub.faults = [Fault("POST", COMMIT, status=429, headers={"Retry-After": "37"})]
    with caplog.at_level(logging.INFO, logger="genselect"):
        publish()
    assert "uploading: the Hub answers 429 (as planned); trying again in 38 s" in caplog.text
    assert hub.waits == [38]


def test_a_wait_beyond_patience_ends_with_how_to_go_on(publish, hub):
    words = "You have exceeded the rate limit for repository commits (128 per hour). You can retry this action in 43 minutes."
    hub.faults = [Fault("POST", COMMIT, status=429, error=words)]
    patience = dataclasses.replace(QUICK, asked_s=60)
    refused(publish, r"asks for 2580\.0 s of rest: You have exceeded", "it goes on where it stopped", patience=patience)
    publish()
    assert set(hub.received.values()) | set(hub.committed.values()) == {1}


def test_a_hub_that_stays_down(publish, hub):
    hub.faults = [Fault("POST", COMMIT, times=99, status=503)]
    refused(publish, "the Hub answers 503, again and again", "it goes on where it stopped")


def test_no_network(publish, hub, tree):
    with pytest.raises(GenselectError, match="cannot be reached, or the connection broke") as raised:
        publish_to_hub(tree, REPOSITORY, token=TOKEN, endpoint="http://127.0.0.1:9", patience=QUICK)
    assert "HTTPS_PROXY" in raised.value.hint


def test_a_client_that_is_set_offline(publish, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(publish, "set to work offline", "Unset HF_HUB_OFFLINE")
    assert hub.waits == []


def test_somebody_commits_meanwhile(publish, hub, tree):
    hub.add_repo(REPOSITORY)
    faulty = hub.faults = [Fault("POST", COMMIT, status=503)]
    first = hub.repo().head

    def intrude(*arguments):
        if faulty[0].times == 0 and hub.repo().head == first:
            hub.add_commit(hub.repo(), {**hub.repo().tree, "theirs.txt": b"x"})

    hub.moment = intrude
    publish()
    assert published(hub) == contents(tree) | {"theirs.txt": b"x"}


def test_what_does_not_arrive_is_found(publish, hub, monkeypatch):
    keep = hub.add_commit
    monkeypatch.setattr(
        hub,
        "add_commit",
        lambda repo, tree: keep(repo, {p: c for p, c in tree.items() if not p.endswith("step_2.json")}),
    )
    refused(publish, r"1 file\(s\) are not there after the upload: runs/formal/potential/step_2\.json", ".gitignore")


def test_what_reads_back_otherwise_is_found(publish, hub, monkeypatch):
    publish()
    handler = hub.server.RequestHandlerClass
    honest = handler.resolve

    def resolve(self, name, revision, path):
        status, headers, content = honest(self, name, revision, path)
        return status, headers, content.replace(b"license", b"License") if path == FRONT_PAGE else content

    monkeypatch.setattr(handler, "resolve", resolve)
    refused(publish, r"README\.md reads back with another content", "do not announce this commit")


def test_killed_at_ten_moments_and_started_again(hub, tree):
    fork = multiprocessing.get_context("fork")

    def start():
        child = fork.Process(
            target=publish_to_hub,
            args=(tree, REPOSITORY),
            kwargs={"token": TOKEN, "endpoint": hub.endpoint, "patience": QUICK},
        )
        child.start()
        hub.victim = child.pid
        child.join(60)
        return child.exitcode

    assert start() == 0
    wanted, moments = published(hub), len(hub.moments)
    assert wanted == contents(tree)
    assert moments == 14
    for moment in sorted(random.Random(6).sample(range(1, moments + 1), 10)):
        hub.repos.clear()
        hub.storage.clear()
        hub.received.clear()
        hub.committed.clear()
        hub.moments, hub.kill_at = [], moment
        assert start() == -9, moment
        what, hub.kill_at = hub.moments[-1], None
        assert start() == 0, what
        assert published(hub) == wanted, what
        assert set(hub.received.values()) | set(hub.committed.values()) == {1}, what
