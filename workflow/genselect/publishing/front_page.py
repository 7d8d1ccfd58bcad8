"""The front page of a published tree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from genselect.config import Config
from genselect.config.training import Run
from genselect.publishing.layout import TargetPlan
from genselect.publishing.publication import Archive


def front_page(
    config: Config, runs: Mapping[str, Run], results: Path, plan: TargetPlan, archives: tuple[Archive, ...]
) -> str:
    """The page as Markdown."""
    return f"# {config.dataset.name}\n"
