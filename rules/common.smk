# Paths, the checked configuration, banners. No rules.
#
# needs: Snakemake's `config`
# makes: CONFIG (checked), the paths the rules share, `results/<...>/config.yaml` (the resolved configuration) at the start of a run

import atexit
import datetime
import os
import re
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

# The library is read from this checkout, so that the machine that only plans and submits needs no installation of it.
WORKFLOW = Path(workflow.basedir) / "workflow"
sys.path.insert(0, str(WORKFLOW))

from genselect.config import check_config, fingerprint
from genselect.errors import GenselectError
from genselect.plan import banners
from genselect.plan import report as picturebook
from genselect.plan.evaluation import arm_identity, evaluation_plan
from genselect.plan.inputs import (
    check_base_model,
    shard_names,
    write_differences,
    write_resolved_config,
)
from genselect.plan.rule_graph import write_rule_graph
from genselect.plan.runs import gates, resolved_runs
from genselect.plan.runs import identity as run_identity
from genselect.plan.selection import ALL, check_selections, rollout_identity
from genselect.plan.stages import TARGETS

try:
    CONFIG = check_config(
        config, ", ".join(map(str, workflow.configfiles)) or "--config"
    )
    SHARDS = shard_names(CONFIG.dataset)
    check_base_model(CONFIG.models.base)
    RUNS = resolved_runs(CONFIG)
    check_selections(CONFIG, RUNS)
    ARMS = evaluation_plan(CONFIG, RUNS)
except GenselectError as error:
    # `from None`: the way here is of no use to the user, the message is.
    raise WorkflowError(str(error)) from None

DATA = f"{CONFIG.results}/data/{CONFIG.dataset.name}"
LOGS = f"{CONFIG.results}/logs/{CONFIG.dataset.name}"
BENCHMARKS = f"{CONFIG.results}/benchmarks/{CONFIG.dataset.name}"
OVERFIT = f"{DATA}/overfit"
ROLLOUTS = f"{CONFIG.results}/rollouts"
RUN_ROOT = f"{CONFIG.results}/runs"
GATES = f"{CONFIG.results}/gates"
EVALUATION = f"{CONFIG.results}/evaluation/{CONFIG.dataset.name}"
PREREGISTRATION = f"{EVALUATION}/preregistration.json"
REPORT = f"{CONFIG.results}/report/{CONFIG.dataset.name}"
FIGURES = f"{REPORT}/figures"
PAGE = f"{REPORT}/index.html"
PUBLICATION = f"{CONFIG.results}/publication/{CONFIG.dataset.name}"
RESOLVED_CONFIG = f"{DATA}/config.yaml"
LABEL_SHARDS = [
    f"{k}-of-{CONFIG.judge.shards}" for k in range(1, CONFIG.judge.shards + 1)
]

# Jobs import the library from this checkout too, in whichever environment they run. `exec` in the rules hands the program the
# signals that a cluster sends to the job.
shell.prefix(
    f"set -euo pipefail; export PYTHONPATH={WORKFLOW}${{{{PYTHONPATH:+:$PYTHONPATH}}}}; "
)
SCRIPTS = WORKFLOW / "scripts"
STARTED = datetime.datetime.now()


def identity(*sections):
    """A parameter that changes, and so reruns the rule, exactly when a setting that changes its result does."""
    return fingerprint([section.identity() for section in sections])


def cards(count):
    """Cards that a job asks a cluster for; none for the miniature's model, which is made for machines without any."""
    return 0 if CONFIG.models.base.source == "made" else count


def rows_of(chosen, part):
    """The train or val rows of an overfit set, or, for ``all`` or None, those that were built."""
    return f"{DATA if chosen in (ALL, None) else f'{OVERFIT}/{chosen}'}/{part}.parquet"


def selection_of(chosen):
    """The selection.csv of an overfit set; nothing for all built rows."""
    return [] if chosen is None else f"{OVERFIT}/{chosen}/selection.csv"


def drawn(draws):
    """What must stand before ``draws`` can be read; nothing for None."""
    if draws is None:
        return []
    if draws.rollout is not None:
        return f"{ROLLOUTS}/{draws.rollout}/records/step_0.parquet"
    return f"{RUN_ROOT}/{draws.run}/done.json"


def record_files(draws, option):
    """An option that names the record files of ``draws``, for a shell; nothing for None. A run's files are known to the shell
    alone: they are not there when the plan is made."""
    if draws is None:
        return ""
    if draws.rollout is not None:
        return f"{option} {shlex.quote(drawn(draws))}"
    folder = shlex.quote(f"{RUN_ROOT}/{draws.run}/records")
    steps = ["*"] if draws.steps is None else draws.steps
    return " ".join([option, *(f"{folder}/step_{step}.parquet" for step in steps)])


def any_of(names):
    """A constraint that lets a wildcard be one of ``names``."""
    return "|".join(map(re.escape, names)) or "none"


def merged_weights(arm):
    """The folder of an anchor's weights; nothing for the untrained policy, which is the base model."""
    return f"{EVALUATION}/merged/{arm}" if ARMS.played[arm].run else []


def compared(run, step=None):
    """The comparison, if a policy of this run (of this step) is in it; else nothing."""
    steps = [arm.step for arm in ARMS.played.values() if arm.run == run]
    return (
        f"{EVALUATION}/comparison.json"
        if steps and (step is None or step in steps)
        else []
    )


def waits_for(wildcards):
    """What must stand before a run may start: another run that it starts from; before a formal run every gate, too, and the
    preregistration."""
    run = RUNS[wildcards.run]
    files = []
    if run.start.run is not None:
        files.append(f"{RUN_ROOT}/{run.start.run}/done.json")
    if run.kind == "formal":
        files += [f"{GATES}/{gate}.json" for gate in gates(RUNS)]
        # Only that it stands counts: written anew, it must not start a finished run again.
        files.append(ancient(PREREGISTRATION))
    return files


def picture(name, category, title, *, folder="", **labels):
    """A picture's file, marked for Snakemake's report."""
    return report(
        f"{FIGURES}/{folder}{name}.svg",
        caption=f"../workflow/genselect/report/captions/{name}.rst",
        category=category,
        labels={"picture": title, **labels},
    )


def pictures(drawn, category, *, folder="", **labels):
    """The files of ``drawn``, each SVG marked for Snakemake's report, each PNG beside it."""
    marked = [
        picture(one.name, category, one.title, folder=folder, **labels) for one in drawn
    ]
    return [*marked, *(f"{FIGURES}/{folder}{one.name}.png" for one in drawn)]


def planned_jobs():
    """The jobs of this plan; none before there is one. Snakemake shows them to a Snakefile in no other way."""
    if workflow.dag is None:
        return []
    return list(workflow.dag.needrun_jobs(exclude_finished=False))


def planned_costs():
    """What the jobs of this plan cost, by estimate; empty before there is a plan."""
    # Here, not above: only dry runs and starts need it.
    from genselect.status.estimate import Job, estimate, known_architecture

    jobs = [
        Job(
            job.rule.name,
            next(iter(job.wildcards_dict.values()), ""),
            int(job.resources.get("gpu", 0)),
            job.resources.get("runtime"),
        )
        for job in planned_jobs()
        if job.rule.name not in TARGETS
    ]
    return estimate(
        jobs, RUNS, Path(CONFIG.results), Path(BENCHMARKS), known_architecture(CONFIG)
    )


def tell_costs():
    """At the end of a dry run: card hours and disk, by job and in all; what would be published of what is there; what would be sent
    elsewhere."""
    if not workflow.dryrun:
        return
    from genselect.plan.destinations import destinations
    from genselect.publishing.plan_text import staging_told
    from genselect.status.estimate import check_disk, text

    costs = planned_costs()
    if costs:
        print(text(costs), file=sys.stderr)
        try:
            check_disk(costs, Path(CONFIG.results))
        except GenselectError as error:
            print(f"error: {error}", file=sys.stderr)
    if any(job.rule.name == "stage_publication" for job in planned_jobs()):
        print(staging_told(CONFIG), file=sys.stderr)
    for told in destinations(
        CONFIG, {job.rule.name for job in planned_jobs()}, os.environ
    ):
        print(told, file=sys.stderr)


# Snakemake has no hook for the end of a dry run.
atexit.register(tell_costs)


onstart:
    from genselect.status.estimate import check_disk

    try:
        check_disk(planned_costs(), Path(CONFIG.results))
    except GenselectError as error:
        raise WorkflowError(str(error)) from None
    write_resolved_config(CONFIG, RESOLVED_CONFIG)
    write_differences(CONFIG, f"{DATA}/differences.json")
    print(banners.start(CONFIG, RESOLVED_CONFIG, LOGS), file=sys.stderr)


onsuccess:
    print(
        banners.success(CONFIG, DATA, LOGS, EVALUATION, PAGE, PUBLICATION, STARTED),
        file=sys.stderr,
    )


onerror:
    print(banners.failure(LOGS, STARTED), file=sys.stderr)
