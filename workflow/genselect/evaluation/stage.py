"""The evaluation stage on files: baselines, preregistration, comparison, from the configuration and what the arms have written."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from genselect.config import Config, fingerprint
from genselect.config.training import Run
from genselect.dataset.held_out import FILES, sealed_judge
from genselect.errors import GenselectError
from genselect.evaluation.baselines import baseline_rows, baseline_summary
from genselect.evaluation.comparison import Arm, baseline_arms, compare_arms
from genselect.evaluation.comparison_text import comparison_text
from genselect.evaluation.power import plan_effect
from genselect.evaluation.preregistration import make_hypothesis, make_settings, preregister, read_preregistration
from genselect.evaluation.questions import Question, population_sha256, read_questions
from genselect.formats import atomic_path, read_json, write_json, write_text
from genselect.formats.arm_results import read_arm_results
from genselect.plan.evaluation import SELECTOR, UNTRAINED, Plan
from genselect.provenance import check_seal, file_sha256, write_seal

LEVEL = 0.95
#: What a run's manifest calls the preregistration it started under (in its context).
CONTEXT_KEY = "preregistration_sha256"

_DESCRIPTIONS = {
    UNTRAINED: "the untrained policy in the episode",
    SELECTOR: "the untrained policy, all candidates at once",
}

logger = logging.getLogger("genselect")


def write_baselines(config: Config, data: Path, output: Path) -> dict[str, Any]:
    """Every arm that needs no model, in one Parquet file with its seal.

    Args:
        config: The configuration.
        data: Folder of the built rows.
        output: The file.

    Returns:
        The figures in the seal: see :func:`genselect.evaluation.baselines.baseline_summary`.
    """
    started = datetime.datetime.now(datetime.UTC)
    judge, questions, section = sealed_judge(data), _questions(data), config.evaluation
    rows = baseline_rows(questions, seed=section.seed, thresholds=section.thresholds)
    with atomic_path(output) as target:
        pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), target, compression="zstd")
    summary = baseline_summary(questions, rows, seed=section.seed)
    write_seal(
        output,
        kind="baselines",
        counts=summary,
        outputs=[output],
        inputs=[data / name for name in FILES],
        started=started,
        fingerprints={"judge": judge},
        config={"seed": section.seed, "thresholds": section.thresholds},
    )
    return summary


def write_preregistration(
    config: Config, runs: Mapping[str, Run], plan: Plan, data: Path, baselines: Path, arms: Path, output: Path
) -> dict[str, Any]:
    """Fix hypotheses, arms and tests, with what they can see: ``preregistration.json`` and its seal.

    Args:
        config: The configuration.
        runs: Resolved.
        plan: Of :func:`genselect.plan.evaluation.evaluation_plan`.
        data: Folder of the built rows.
        baselines: The baselines' file.
        arms: Folder of the arms' files; those of ``plan.before`` are read.
        output: The file.

    Raises:
        GenselectError: Another preregistration stands there, or an arm does not belong to these questions.
    """
    questions = _questions(data)
    everything = settings(config, runs, plan, questions, sealed_judge(data))
    registered = {**everything, "exploratory": {"arms": [], "hypotheses": []}}
    known = {**read_baselines(baselines, data), **{name: read_arm(arms, (name,), data) for name in plan.before}}
    # A reference that the policy is compared with in the same file: the untrained policy itself has none.
    effects = {
        entry["name"]: plan_effect(
            known[UNTRAINED].rows,
            None if entry["against"] == UNTRAINED else known[entry["against"]].rows,
            questions=len(questions),
            samples=config.evaluation.samples,
            alpha=config.evaluation.alpha,
            power=config.evaluation.power,
            hypotheses=len(registered["hypotheses"]),
        )
        for entry in registered["hypotheses"]
    }
    inputs = [data / FILES[0], data / FILES[1], baselines, *(arm_file(arms, name) for name in plan.before)]
    return preregister(output, registered, effects, inputs)


def write_comparison(
    config: Config,
    runs: Mapping[str, Run],
    plan: Plan,
    *,
    data: Path,
    baselines: Path,
    arms: Path,
    preregistration: Path,
    runs_root: Path,
    output: Path,
) -> dict[str, Any]:
    """Compare all arms: ``comparison.json``, ``comparison.md`` beside it, and a seal over both.

    Args:
        config: The configuration.
        runs: Resolved.
        plan: Of :func:`genselect.plan.evaluation.evaluation_plan`.
        data: Folder of the built rows.
        baselines: The baselines' file.
        arms: Folder of the arms' files.
        preregistration: The file.
        runs_root: Folder of the run directories: their manifests say under which preregistration they started.
        output: ``comparison.json``.

    Raises:
        GenselectError: The settings differ from the preregistered ones, a formal run did not start under this preregistration, or
            an arm does not belong to these questions or to this judge.
    """
    started = datetime.datetime.now(datetime.UTC)
    registered = read_preregistration(preregistration)
    _check_started_under(plan, runs, runs_root, preregistration)
    questions = _questions(data)
    model_arms = {**{name: (name,) for name, arm in plan.played.items() if arm.run is None}, **plan.trained}
    found = {
        **{name: read_arm(arms, members, data, name) for name, members in model_arms.items()},
        **read_baselines(baselines, data),
    }
    comparison = compare_arms(
        found,
        questions,
        registered,
        settings(config, runs, plan, questions, sealed_judge(data)),
        waived_gates=config.waived_gates,
    )
    text = output.with_suffix(".md")
    write_json(output, comparison)
    write_text(text, comparison_text(comparison))
    write_seal(
        output,
        kind="comparison",
        counts={"questions": len(questions), "arms": len(found), "hypotheses": len(comparison["hypotheses"])},
        outputs=[output, text],
        inputs=[preregistration, baselines, *(arm_file(arms, name) for name in plan.played)],
        started=started,
        fingerprints={"preregistration": fingerprint(registered), "judge": comparison["settings"]["judge_fingerprint"]},
        config=comparison["settings"],
    )
    return comparison


def settings(
    config: Config, runs: Mapping[str, Run], plan: Plan, questions: list[Question], judge: str
) -> dict[str, Any]:
    """The settings of the comparison as the configuration has them now; see :func:`make_settings`."""
    section = config.evaluation
    registered = [name for name in plan.arms if name not in plan.exploratory]
    hypotheses = [
        (make_hypothesis(f"{arm} above {against}", arm, against), arm in plan.exploratory)
        for arm, against in plan.hypotheses
    ]
    model_arms = [*plan.trained, *(name for name, arm in plan.played.items() if arm.run is None)]
    trained = sorted({runs[arm.run].seed for arm in plan.played.values() if arm.run and _registered(plan, arm.name)})
    return make_settings(
        hypotheses=[entry for entry, exploratory in hypotheses if not exploratory],
        arms=registered,
        questions=len(questions),
        population_sha256=population_sha256(questions),
        samples=dict.fromkeys(model_arms, section.samples),
        seeds={
            "training": trained,
            "sampling": section.seed,
            "tie_break": section.seed,
            "bootstrap": section.seed,
            "draw": section.seed,
        },
        judge_fingerprint=judge,
        smallest_effect=section.smallest_effect,
        alpha=section.alpha,
        power=section.power,
        level=LEVEL,
        exploratory_arms=[name for name in plan.arms if name in plan.exploratory],
        exploratory_hypotheses=[entry for entry, exploratory in hypotheses if exploratory],
    )


def arm_file(arms: Path, name: str) -> Path:
    """Where the results of a policy lie."""
    return arms / f"{name}.parquet"


def read_arm(arms: Path, members: tuple[str, ...], data: Path, name: str | None = None) -> Arm:
    """One arm out of the files of its policies (several are replicates), checked against seals and questions.

    Raises:
        GenselectError: A file is missing, changed, or of other questions; or replicates have one seed.
    """
    name = name or members[0]
    tables, judges = [], []
    for member in members:
        path = arm_file(arms, member)
        judges.append(_check_sealed(path, "arm", data))
        tables.append(read_arm_results(path).to_pandas())
    rows = pd.concat(tables, ignore_index=True)
    if rows["seed"].nunique() < len(members):
        raise GenselectError(f"arm {name}: {', '.join(members)} have one training seed", "Replicates differ in it.")
    if len(set(judges)) > 1:
        raise GenselectError(f"arm {name}: its policies had different judges", "Evaluate them again.")
    rows["correct"] = rows["correct"].astype(float)
    description = _DESCRIPTIONS.get(name, f"the policy of {', '.join(members)}")
    return Arm(name, rows, judges[0], "model", description)


def read_baselines(path: Path, data: Path) -> dict[str, Arm]:
    """The arms that need no model, checked against seal and questions."""
    judge = _check_sealed(path, "baselines", data)
    return baseline_arms(pd.read_parquet(path), judge)


def _check_sealed(path: Path, kind: str, data: Path) -> str:
    """The judge in the seal of ``path``, after checking that it is whole and of the questions at hand."""
    if not path.exists():
        raise GenselectError(f"{path}: there is no such file", "Evaluate the arm: snakemake evaluate.")
    seal = check_seal(path)
    if seal is None or seal.kind != kind or "judge" not in seal.fingerprints:
        raise GenselectError(f"{path}: has no seal of {kind} that names a judge", "Evaluate the arm again.")
    sealed = {entry.sha256 for entry in seal.inputs}
    for name in FILES[:2]:
        if file_sha256(data / name) not in sealed:
            raise GenselectError(f"{path}: was made from another {name}", "Evaluate the arm again, on these questions.")
    return seal.fingerprints["judge"]


def _check_started_under(plan: Plan, runs: Mapping[str, Run], runs_root: Path, preregistration: Path) -> None:
    wanted = file_sha256(preregistration)
    for arm in plan.played.values():
        if arm.run is None or runs[arm.run].kind != "formal" or not _registered(plan, arm.name):
            continue
        manifest = runs_root / arm.run / "manifest.json"
        found = read_json(manifest)["context"].get(CONTEXT_KEY)
        if found != wanted:
            what = f"another preregistration ({found[:12]})" if found else "no preregistration"
            raise GenselectError(
                f"{manifest}: the run was started under {what}, not under {preregistration} ({wanted[:12]})",
                f"Put that preregistration back; or give the run another name and run it anew; or list {arm.name} under "
                "evaluation.exploratory.",
            )


def _registered(plan: Plan, member: str) -> bool:
    """Whether a policy belongs to an arm that was preregistered."""
    return any(member in members and arm not in plan.exploratory for arm, members in plan.trained.items())


def _questions(data: Path) -> list[Question]:
    return read_questions(data / FILES[0], data / FILES[1])
