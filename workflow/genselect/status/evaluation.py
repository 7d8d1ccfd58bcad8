"""The final word's stages (``rules/evaluate.smk``, ``rules/report.smk``): baselines, arms, preregistration, comparison, report."""

from __future__ import annotations

from genselect.errors import GenselectError
from genselect.plan.evaluation import ModelArm, evaluation_plan
from genselect.status.experiment import Experiment, parts_done, parts_of, stage_of, standing_of
from genselect.status.model import Stage, State
from genselect.status.reading import LogEnd, Reader, integer, log_end


def evaluation_stages(experiment: Experiment, reader: Reader) -> list[Stage]:
    """In order; none for a configuration that was written before there was an evaluation."""
    if experiment.config is None or "evaluation" not in experiment.config.model_fields_set:
        return []
    try:
        plan = evaluation_plan(experiment.config, experiment.runs)
    except GenselectError as error:
        reader.problems.append(error.message)
        return []
    rows, baselines = experiment.rows_missing(None), _missing(experiment, "baselines.parquet", "baselines")
    missing = {name: _missing(experiment, f"arms/{name}.parquet", f"arm {name}") for name in plan.played}
    found = [_stage(experiment, "baselines", "baselines.parquet", "evaluate_baselines", rows, reader)]
    if not plan.played:
        return [*found, report_stage(experiment, reader)]
    before = [name for name in plan.played if name in plan.before]
    found += [_arm(experiment, plan.played[name], reader) for name in before]
    wanted = [*baselines, *(what for name in before for what in missing[name])]
    found.append(_stage(experiment, "preregistration", "preregistration.json", "preregister", wanted, reader))
    found += [_arm(experiment, arm, reader) for name, arm in plan.played.items() if name not in before]
    wanted = [
        *baselines,
        *experiment.preregistration_missing(),
        *(what for name in plan.played for what in missing[name]),
    ]
    found.append(_stage(experiment, "comparison", "comparison.json", "compare_arms", wanted, reader))
    return [*found, report_stage(experiment, reader)]


def report_stage(experiment: Experiment, reader: Reader) -> Stage:
    """The page that says it all."""
    page = experiment.root / "report" / experiment.name / "index.html"
    formal = any(run.kind == "formal" for run in experiment.runs.values())
    waits_for = [
        *experiment.rows_missing(None),
        *experiment.gates_missing(),
        *(what for name in experiment.runs for what in experiment.run_missing(name)),
        *(_missing(experiment, "comparison.json", "comparison") if formal else []),
    ]
    standing = standing_of(page.exists(), waits_for, log_end(reader, experiment.logs / "write_page.log"))
    note = reader.relative(page) if page.exists() else standing.note
    return stage_of(experiment, "report", None, standing, note, waits_for, reader.fresh())


def _missing(experiment: Experiment, name: str, what: str) -> list[str]:
    return [] if (experiment.evaluation / name).exists() else [what]


def _stage(experiment: Experiment, stage: str, file: str, rule: str, waits_for: list[str], reader: Reader) -> Stage:
    done = (experiment.evaluation / file).exists()
    standing = standing_of(done, waits_for, log_end(reader, experiment.logs / f"{rule}.log"))
    words = experiment.evaluation / "comparison.md"
    note = reader.relative(words) if done and stage == "comparison" and words.exists() else standing.note
    return stage_of(experiment, stage, None, standing, note, waits_for, reader.fresh())


def _arm(experiment: Experiment, arm: ModelArm, reader: Reader) -> Stage:
    """Played in parts; a trained one after its weights have been merged."""
    reader = reader.fresh()
    waits_for = [*experiment.run_missing(arm.run), *experiment.model_missing(), *experiment.rows_missing(None)]
    done = (experiment.evaluation / "arms" / f"{arm.name}.parquet").exists()
    logs = [experiment.logs / rule / f"{arm.name}.log" for rule in ("evaluate_arm", "merge_anchor")]
    ends: list[LogEnd] = [end for path in logs if (end := log_end(reader, path))]
    standing = standing_of(done, waits_for, min(ends, key=lambda end: end.age_s, default=None))
    stats = reader.mapping(experiment.data / "stats.json") or {}
    total = parts_of(integer(stats.get("held_out_rows")))
    return Stage(
        *(experiment.name, "arm", arm.name, standing.state),
        done=total if done else parts_done(experiment.evaluation / "parts" / arm.name),
        total=total,
        unit="parts",
        seen_s=standing.seen_s,
        note=standing.note,
        waits_for=waits_for if standing.state is State.WAITING else [],
        problems=[] if done else reader.problems,
    )
