"""The journal: what it holds survives, what was torn is dropped, what was damaged is named."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from genselect.errors import GenselectError
from genselect.judge import journal as module
from genselect.judge.journal import Journal, content_key


def filled(folder, lines=3):
    with Journal(folder) as journal:
        for number in range(lines):
            journal.append("judge", f"k{number}", verdict=True, calls=1)
    return journal.path


def test_records_are_there_when_it_is_opened_again(tmp_path):
    filled(tmp_path)
    with Journal(tmp_path) as journal:
        assert len(journal) == 3
        assert journal.get("judge", "k1") == {"stage": "judge", "key": "k1", "verdict": True, "calls": 1}
        assert journal.get("cascade", "k1") is None
        journal.append("judge", "k3")
    assert len(filled(tmp_path, 0).read_text().splitlines()) == 4


@pytest.mark.parametrize("torn", [b'{"stage":"jud', b"\0\0\0", b'{"stage":"judge","key":"k9"', b"{}\n"])
def test_a_torn_end_is_cut_off_and_writing_goes_on(tmp_path, torn):
    path = filled(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with Journal(tmp_path) as journal:
        assert len(journal) == 3
        assert path.read_bytes() == whole
        journal.append("judge", "k3")
    with Journal(tmp_path) as journal:
        assert [key for _, key in journal.records] == ["k0", "k1", "k2", "k3"]


def test_any_cut_of_the_file_loses_only_the_line_it_hits(tmp_path):
    path = filled(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with Journal(tmp_path) as journal:
            assert len(journal) == whole[:length].count(b"\n")


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    path = filled(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"stage": oops\n' + lines[2])
    with pytest.raises(GenselectError, match=r"journal\.jsonl, line 2: not a journal record"), Journal(tmp_path):
        pass


def test_a_second_writer_is_refused_and_the_first_goes_on(tmp_path):
    with Journal(tmp_path) as journal:
        code = "import sys; from genselect.judge.journal import Journal\nwith Journal(sys.argv[1]): pass"
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
        assert "another process is writing to this journal" in other.stderr
        journal.append("judge", "k")
    with Journal(tmp_path) as journal:
        assert len(journal) == 1


def test_a_line_is_in_the_file_as_soon_as_append_returns(tmp_path):
    """So that kill -9 cannot take it back."""
    with Journal(tmp_path) as journal:
        journal.append("judge", "k")
        assert journal.path.read_bytes().endswith(b'"key":"k"}\n')


def test_lines_reach_the_disk_by_number_or_time(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(module.os, "fsync", lambda file: (synced.append(journal.path.stat().st_size), real(file)))
    monkeypatch.setattr(module, "SYNC_SECONDS", 0.2)
    monkeypatch.setattr(module, "SYNC_LINES", 1000)
    import time

    with Journal(tmp_path) as journal:
        for number in range(5000):
            journal.append("judge", f"{number}")
        journal.append("judge", "last")
        deadline = time.monotonic() + 5
        while not synced or synced[-1] < journal.path.stat().st_size:
            assert time.monotonic() < deadline, "the last line was never synced"
            time.sleep(0.01)
        assert len(synced) < 100  # in batches, not a line at a time


def test_a_full_disk_is_said_and_leaves_a_journal_that_opens(tmp_path):
    """A file size limit stands in for the full disk: the first part of a line goes through, the rest does not."""
    code = """
import resource, signal, sys
from genselect.judge.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Journal(sys.argv[1]) as journal:
    journal.append("judge", "k0")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    for number in range(1, 9):
        journal.append("judge", f"k{number}")
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "the journal could not be written: File too large" in done.stderr
    assert "Hint: Free space" in done.stderr
    assert (tmp_path / "journal.jsonl").read_bytes().endswith(b"}\n")  # the torn part was taken back
    with Journal(tmp_path) as journal:
        assert 1 <= len(journal) <= 8


def test_the_key_is_of_the_content(tmp_path):
    key = content_key("p", "e", "a", "f")
    assert key == content_key("p", "e", "a", "f")
    others = [content_key(*parts) for parts in [("pe", "", "a", "f"), ("p", "a", "e", "f"), ("p", "e", "a", "g")]]
    assert len({key, *others}) == 4
