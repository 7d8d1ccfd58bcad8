"""The report as the plan sees it: which pictures there are, and of which runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from genselect.config.training import Run


@dataclass(frozen=True)
class Picture:
    """One picture: ``<name>.svg``, with ``<name>.png`` beside it."""

    name: str
    """Also the name of its caption."""
    title: str
    """Above it on the page, and in Snakemake's report."""


RULES = Picture("rules", "Which rule feeds which")
DATA = (
    Picture("data_flow", "From raw rows to kept problems"),
    Picture("labels_by_stage", "Which stage labelled the candidates"),
    Picture("correct_of_eight", "Problems by number of correct candidates"),
)
RUN = (
    Picture("training", "Verdict, explores, score and KL by step"),
    Picture("health", "Guards and proofs by step"),
    Picture("explores", "How many candidates an episode explores"),
    Picture("calibration", "Submit predictor and critic by step"),
    Picture("reliability", "Is the submit predictor's chance the share that is right?"),
)
EVALUATION = (
    Picture("forest", "Did it rise? Differences with their intervals"),
    Picture("accuracy", "Accuracy of every arm"),
    Picture("cost", "Accuracy against candidates shown"),
    Picture("strata", "Where the difference comes from"),
)


def reported_runs(runs: Mapping[str, Run]) -> list[str]:
    """The runs that get pictures: formal ones first, then the others; those of a single step have no curve."""
    long = [name for name, run in runs.items() if run.schedule.steps > 1]
    return sorted(long, key=lambda name: runs[name].kind != "formal")
