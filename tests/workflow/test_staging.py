"""Staging as a rule: its plan in the dry run, what it leaves, and when it runs again."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from genselect.publishing.sums import check_tree


def test_the_dry_run_ends_with_what_would_be_published(finished) -> None:
    said = finished.snakemake("-n").stderr
    told = said[said.index("Publication, of what is in the results folder now:") :].splitlines()
    assert re.fullmatch(r"  hub: \d+ files, [\d.]+ [kM]B, 1 commit\(s\); 0 files, 0 B stay here", told[1])
    assert told[2].startswith("  reading_copy: ")
    # Only where it is part of the plan.
    assert "Publication" not in finished.snakemake("-n", "data", "--forcerun", "build_rows").stderr


def test_nothing_is_played_only_to_be_published(repository: Path, tmp_path: Path) -> None:
    # Its rollout waits for a run that trains on rows drawn from it, and there is none yet.
    plan = subprocess.run(
        ["snakemake", "--directory", tmp_path, "--configfile", "config/config.yaml", "-n", "stage"],
        cwd=repository, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert plan.returncode == 0, plan.stderr
    assert "stage_publication" in plan.stdout + plan.stderr
    assert "rollout_policy" not in plan.stdout + plan.stderr


@pytest.mark.soak
def test_the_chain_ends_with_staged_trees_and_a_changed_result_stages_them_again(checkout) -> None:
    checkout.configure([("runs", {}), ("rollouts", {}), ("overfit_sets", {})])
    said = checkout.snakemake().stderr
    home = checkout.root / "results" / "publication" / "mini"
    assert "staged for others: results/publication/mini/hub and results/publication/mini/reading_copy" in said
    publication, _ = check_tree(home / "hub")
    first = (home / "hub" / "publication.json").read_bytes()
    assert {"rows", "page", "baselines", "figures", "log"} <= {file.kind for file in publication.files}
    assert "Nothing to be done" in checkout.snakemake("-n").stdout + checkout.snakemake("-n").stderr
    # Snakemake's own report comes after it, and is no part of it.
    checkout.snakemake("--report", "results/report/mini/snakemake.html")
    checkout.snakemake("--forcerun", "stage_publication")
    assert (home / "hub" / "publication.json").read_bytes() == first
    checkout.configure([("publish.title", "Another title")])
    checkout.snakemake()
    assert "# Another title\n" in (home / "hub" / "README.md").read_text()
    # Refused, and the former trees stay.
    (checkout.root / "results" / "data" / "mini" / "notes.txt").write_text("mine")
    refused = checkout.snakemake("--forcerun", "stage_publication", check=False)
    assert refused.returncode != 0
    assert "data/mini/notes.txt" in refused.stdout + refused.stderr
    check_tree(home / "hub")
