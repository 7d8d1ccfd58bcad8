"""Which rule feeds which, asked of Snakemake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from genselect.errors import GenselectError
from genselect.formats import write_text


def write_rule_graph(snakefile: Path | str, config: Path | str, output: Path | str, log: Path | str) -> None:
    """Write what ``snakemake --rulegraph dot`` prints for the default target, and what else it says into ``log``. Only plans; takes
    no lock.

    Raises:
        GenselectError: Snakemake fails.
    """
    files = ["--snakefile", str(snakefile), "--configfile", str(config)]
    command = [sys.executable, "-m", "snakemake", *files, "--cores", "1", "--rulegraph", "dot"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    write_text(log, done.stderr)
    if done.returncode:
        raise GenselectError(
            f"{snakefile}: the rule graph cannot be had:\n{done.stderr.strip()}", "Mend what Snakemake names."
        )
    write_text(output, done.stdout)
