"""The stages before and around the runs: from their files alone, in the order of ``rules/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from genselect.config.rollout import Draws
from genselect.errors import GenselectError
from genselect.plan.inputs import shard_names
from genselect.plan.runs import gates
from genselect.status.experiment import Experiment, Standing, counted, parts_done, parts_of, stage_of, standing_of
from genselect.status.model import Stage, State
from genselect.status.reading import (
    QUIET_S,
    Reader,
    added,
    count_files,
    folders,
    integer,
    log_end,
    mapping,
    number,
    text,
)


def stages(experiment: Experiment, reader: Reader) -> list[Stage]:
    """Every stage but the runs, in order."""
    found = [_shards(experiment, reader), _merge(experiment, reader), *_labels(experiment, reader)]
    found += [_build(experiment, reader), _model(experiment, reader)]
    found += [_rollout(experiment, name, reader) for name in _names(experiment.rollouts, experiment.root / "rollouts")]
    sets = _names(experiment.overfit_sets, experiment.data / "overfit")
    return found + [_overfit_set(experiment, name, reader) for name in sets]


def gate_stages(experiment: Experiment, reader: Reader, judged: Sequence[str]) -> list[Stage]:
    """The gates: those of the configuration, and ``judged``, those with a file."""
    return [_gate(experiment, name, reader) for name in dict.fromkeys([*gates(experiment.runs), *judged])]


def _shards(experiment: Experiment, reader: Reader) -> Stage:
    folder = experiment.data / "shards"
    done = count_files(folder, "*.parquet")
    total = None
    if experiment.config:
        try:
            total = len(shard_names(experiment.config.dataset))
        except GenselectError:  # a local_dir that this machine does not have
            total = done or None
    logs = [experiment.logs / "make_mini_shards.log", *_glob(experiment.logs / "download_shard", "*.log")]
    ends = [end for path in logs if (end := log_end(reader, path))]
    # Of several downloads a failed one is what a person should see, and then the latest.
    last = min(ends, key=lambda end: (not end.failed, end.age_s), default=None)
    standing = standing_of(done > 0 and done >= (total or done), [], last)
    return Stage(
        *(experiment.name, "shards", None, standing.state),
        done=done,
        total=total,
        unit="shards",
        seen_s=standing.seen_s,
        note=standing.note,
    )


def _merge(experiment: Experiment, reader: Reader) -> Stage:
    reader = reader.fresh()
    shards = experiment.data / "shards"
    waits_for = [] if count_files(shards, "*.parquet") else ["shards"]
    end = log_end(reader, experiment.logs / "merge_candidates.log")
    standing = standing_of((experiment.data / "merged.jsonl").exists(), waits_for, end)
    note = standing.note
    if standing.state is State.DONE:
        note = counted(reader.mapping(experiment.data / "merge_stats.json"), "problems", "candidates")
    return stage_of(experiment, "merge", None, standing, note, waits_for, reader)


def _labels(experiment: Experiment, reader: Reader) -> list[Stage]:
    """The whole first, then each labelling job while there are several or they are not done."""
    whole = reader.fresh()
    names = (
        [f"{k}-of-{experiment.config.judge.shards}" for k in range(1, experiment.config.judge.shards + 1)]
        if experiment.config
        else folders(experiment.data / "labels")
    )
    waits_for = [] if (experiment.data / "merged.jsonl").exists() else ["merge"]
    jobs = [_label_job(experiment, name, reader.fresh(), waits_for) for name in names]
    done = (experiment.data / "labels.jsonl").exists()
    end = log_end(whole, experiment.logs / "gather_labels.log")
    seal = whole.mapping(experiment.data / "labels.jsonl.seal.json") if done else None
    counts = mapping(seal.get("counts")) if seal else {}
    states = [job.state for job in jobs]
    if done:
        state = State.DONE
    elif waits_for:
        state = State.WAITING
    elif end and end.failed:
        state = State.FAILED
    else:
        order = [State.FAILED, State.RUNNING, State.SILENT, State.STOPPED, State.WAITING, State.ABSENT]
        state = next((known for known in order if known in states), State.RUNNING if states else State.ABSENT)
    calls = integer(counts.get("judge_calls"))
    stage = Stage(
        *(experiment.name, "labels", None, state),
        done=added(job.done for job in jobs),
        total=added(job.total for job in jobs),
        unit="pairs",
        judge_calls=calls if calls is not None else added(job.judge_calls for job in jobs),
        eta_s=None if done else max((job.eta_s for job in jobs if job.eta_s is not None), default=None),
        seen_s=None if done else min((job.seen_s for job in jobs if job.seen_s is not None), default=None),
        note=counted(counts, "candidates", "judged", "correct")
        if done
        else (end.text if end and state is State.FAILED and end.failed else ""),
        waits_for=[] if done else waits_for,
        problems=whole.problems,
    )
    return [stage, *(jobs if len(jobs) > 1 or not done else [])]


def _label_job(experiment: Experiment, name: str, reader: Reader, waits_for: list[str]) -> Stage:
    folder = experiment.data / "labels" / name
    progress = reader.mapping(folder / "journal" / "progress.json") or {}
    standing = standing_of(
        (folder / "labels.jsonl").exists(), waits_for, log_end(reader, experiment.logs / "label_shard" / f"{name}.log")
    )
    state, seen_s = standing.state, standing.seen_s
    if progress and state in (State.RUNNING, State.SILENT, State.ABSENT):
        # Its own clock outlives a copy; the file's may not.
        ages = [age for age in (_since(progress.get("updated"), reader.now), seen_s) if age is not None]
        seen_s = min(ages, default=None)
        if progress.get("state") == "stopped":
            state = State.STOPPED
        else:
            state = State.RUNNING if seen_s is not None and seen_s <= QUIET_S else State.SILENT
    return Stage(
        *(experiment.name, "labels", name, state),
        done=integer(progress.get("done")),
        total=integer(progress.get("total")),
        unit="pairs",
        judge_calls=integer(progress.get("judged")),
        eta_s=number(progress.get("eta_s")) if state is State.RUNNING else None,
        seen_s=seen_s,
        note=standing.note
        if state is State.FAILED
        else (text(progress.get("stage")) or "" if state is State.RUNNING else ""),
        waits_for=waits_for if state is State.WAITING else [],
        problems=reader.problems,
    )


def _build(experiment: Experiment, reader: Reader) -> Stage:
    reader = reader.fresh()
    waits_for = [] if (experiment.data / "labels.jsonl").exists() else ["labels"]
    end = log_end(reader, experiment.logs / "build_rows.log")
    standing = standing_of((experiment.data / "stats.json").exists(), waits_for, end)
    note = standing.note
    if standing.state is State.DONE:
        note = counted(reader.mapping(experiment.data / "stats.json"), "train_rows", "held_out_rows")
    return stage_of(experiment, "build", None, standing, note, waits_for, reader)


def _model(experiment: Experiment, reader: Reader) -> Stage:
    reader = reader.fresh()
    logs = [experiment.logs / "make_base_model.log", experiment.logs / "fetch_model.log"]
    end = next((end for path in logs if (end := log_end(reader, path))), None)
    standing = standing_of(not experiment.model_missing(), [], end)
    note = "" if standing.state is State.DONE else standing.note
    return stage_of(experiment, "model", None, standing, note, [], reader)


def _rollout(experiment: Experiment, name: str, reader: Reader) -> Stage:
    reader = reader.fresh()
    folder = experiment.root / "rollouts" / name
    chosen = experiment.rollouts.get(name)
    waits_for = [] if chosen is None else [*experiment.model_missing(), *experiment.rows_missing(None)]
    end = log_end(reader, experiment.logs / "rollout_policy" / f"{name}.log")
    standing = standing_of((folder / "rollout.json").exists(), waits_for, end)
    summary = reader.mapping(folder / "rollout.json") or {}
    rows = integer(summary.get("rows"))
    if rows is None and chosen is not None:
        stats = reader.mapping(experiment.data / "stats.json") or {}
        rows = integer(stats.get("train_rows" if chosen.rows == "train" else "val_rows_online"))
        rows = rows if rows is None or chosen.first is None else min(rows, chosen.first)
    total = parts_of(rows)
    done = parts_done(folder / "parts")
    note = standing.note
    if standing.state is State.DONE:
        done = total or 0
        verdict = number(summary.get("verdict"))
        note = "" if verdict is None else f"verdict {verdict:.3f} over {integer(summary.get('episodes'))} episodes"
    return Stage(
        *(experiment.name, "rollout", name, standing.state),
        done=done,
        total=total,
        unit="parts",
        seen_s=standing.seen_s,
        note=note,
        waits_for=waits_for if standing.state is State.WAITING else [],
        problems=reader.problems,
    )


def _overfit_set(experiment: Experiment, name: str, reader: Reader) -> Stage:
    reader = reader.fresh()
    folder = experiment.data / "overfit" / name
    chosen = experiment.overfit_sets.get(name)
    waits_for: list[str] = []
    if chosen is not None:
        waits_for = experiment.rows_missing(chosen.of)
        for draws in (chosen.draws, chosen.second_draws):
            waits_for += _draws_missing(experiment, draws)
    end = log_end(reader, experiment.logs / "select_overfit" / f"{name}.log")
    standing = standing_of((folder / "selection.csv").exists(), waits_for, end)
    note = "" if standing.state is State.DONE else standing.note
    if standing.state is State.DONE and (seal := reader.mapping(folder / "selection.csv.seal.json")):
        note = counted(mapping(seal.get("counts")), "rows")
    return stage_of(experiment, "overfit set", name, standing, note, waits_for, reader)


def _draws_missing(experiment: Experiment, draws: Draws | None) -> list[str]:
    if draws is None:
        return []
    if draws.rollout is not None:
        done = (experiment.root / "rollouts" / draws.rollout / "rollout.json").exists()
        return [] if done else [f"rollout {draws.rollout}"]
    return experiment.run_missing(draws.run)


def _gate(experiment: Experiment, name: str, reader: Reader) -> Stage:
    reader = reader.fresh()
    path = experiment.root / "gates" / f"{name}.json"
    verdict = reader.mapping(path)
    may_fail = experiment.config.waived_gates.get(name) if experiment.config else None
    if verdict is not None:
        failed = verdict.get("failed")
        names = [str(mapping(check).get("check")) for check in failed] if isinstance(failed, list) else []
        checks = verdict.get("checks")
        count = len(checks) if isinstance(checks, list) else 0
        if verdict.get("passed") is True:
            return stage_of(experiment, "gate", name, Standing(State.PASSED), f"{count} checks", [], reader)
        if reason := text(verdict.get("waived")):
            note = f"{reason} (fails {', '.join(names)})"
            return stage_of(experiment, "gate", name, Standing(State.WAIVED), note, [], reader)
        return stage_of(experiment, "gate", name, Standing(State.FAILED), f"fails {', '.join(names)}", [], reader)
    waits_for = experiment.run_missing(name)
    standing = standing_of(False, waits_for, log_end(reader, experiment.logs / "check_gate" / f"{name}.log"))
    if reader.problems:
        standing = Standing(State.FAILED)
    note = standing.note or (f"may fail: {may_fail}" if may_fail else "")
    return stage_of(experiment, "gate", name, standing, note, waits_for, reader)


def _names(configured: Mapping[str, Any], folder: Path) -> list[str]:
    return list(dict.fromkeys([*configured, *folders(folder)]))


def _glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _since(moment: Any, now: float) -> float | None:
    """Seconds since an ISO 8601 moment."""
    try:
        return max(0.0, now - datetime.fromisoformat(str(moment)).timestamp())
    except ValueError:
        return None
