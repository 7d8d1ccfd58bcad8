"""Which rule feeds which, asked of Snakemake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from genselect.errors import GenselectError


def rule_graph_of(snakefile: Path | str, config: Path | str) -> str:
    """What ``snakemake --rulegraph dot`` prints for the default target. Only plans; takes no lock.

    Raises:
        GenselectError: Snakemake fails.
    """
    files = ["--snakefile", str(snakefile), "--configfile", str(config)]
    command = [sys.executable, "-m", "snakemake", *files, "--cores", "1", "--rulegraph", "dot"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GenselectError(
            f"{snakefile}: the rule graph cannot be had:\n{done.stderr.strip()}", "Mend what Snakemake names."
        )
    return done.stdout
