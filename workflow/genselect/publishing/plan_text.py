"""The staging plan as a person reads it, in the dry run and from ``stage_publication.py --plan``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from genselect.config import Config
from genselect.errors import GenselectError
from genselect.publishing.layout import StagingPlan, TargetPlan, make_plan
from genselect.status.render import in_bytes

_SHOWN = 3


def staging_told(config: Config) -> str:
    """The plan of a configuration, for the end of a dry run; what keeps it from being made is told as it is."""
    results = Path(config.results)
    if not results.is_dir():
        return "Publication: nothing is in the results folder yet"
    try:
        return plan_text(make_plan(config, results))
    except GenselectError as error:
        return f"error: {error}"


def plan_text(plan: StagingPlan) -> str:
    """A few lines a target: files, bytes, commits, what is packed, what stays here; and what stands in the way."""
    lines = ["Publication, of what is in the results folder now:"]
    for tree in plan.targets.values():
        lines += _target(tree)
    for what, found in (
        ("not in the list of what is published", plan.unknown),
        ("publish.leave_out fits nothing", plan.idle),
        ("not there yet", plan.missing),
        ("in the way", [problem.message for problem in plan.problems]),
    ):
        if found:
            lines.append(f"  {what}: {_some(found)}")
    return "\n".join(lines)


def _target(tree: TargetPlan) -> list[str]:
    left_files, left_bytes = sum(entry.files for entry in tree.left_out), sum(entry.bytes for entry in tree.left_out)
    lines = [
        f"  {tree.target}: {tree.files:,} files, {in_bytes(tree.bytes)}, {tree.commits} commit(s); "
        f"{left_files:,} files, {in_bytes(left_bytes)} stay here"
    ]
    if tree.packed:
        folders = [f"{packing.folder} ({len(packing.items):,})" for packing in tree.packed]
        lines.append(f"    packed into a tar each: {_some(folders)}")
    return lines


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
