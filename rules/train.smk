# Training runs.
#
# needs: the model, the built rows or those of an overfit set, the runs of the configuration; before a formal run, every gate and the
#        preregistration
# makes: runs/<run>/done.json; the run directory around it looks after itself (docs/run-directory.md)


rule train_run:
    input:
        waits_for,
        model=f"{MODEL}/config.json",
        train=lambda wildcards: rows_of(RUNS[wildcards.run].data, "train"),
        val=lambda wildcards: rows_of(RUNS[wildcards.run].data, "val"),
        # Whatever the rows, the judge behind their labels is the built rows'.
        stats=rules.build_rows.output.stats,
        rows_seal=rules.build_rows.output.seal,
    output:
        done=f"{RUN_ROOT}/{{run}}/done.json",
    log:
        f"{LOGS}/train_run/{{run}}.log",
    benchmark:
        f"{BENCHMARKS}/train_run/{{run}}.tsv"
    wildcard_constraints:
        run="|".join(map(re.escape, RUNS)) or "none",
    conda:
        "../envs/train.yaml"
    # A run takes the whole machine: two side by side would starve each other's rollout engine. On a cluster it gets cores by the card
    # (profiles/slurm).
    threads: workflow.cores or 1
    resources:
        gpu=lambda wildcards: cards(
            RUNS[wildcards.run].nodes * RUNS[wildcards.run].cards
        ),
        # Memory of each node.
        mem_mb=lambda wildcards: 100000 * cards(RUNS[wildcards.run].cards) or 16000,
        runtime=7200,
        nodes=lambda wildcards: RUNS[wildcards.run].nodes,
        # Over several nodes the run starts a step of its own on each (genselect/training/nodes.py): "mpi" leaves that to it, where Slurm's
        # executor would else start the run as a step of one task. A None is not asked for.
        mpi=lambda wildcards: "srun" if RUNS[wildcards.run].nodes > 1 else None,
        tasks=lambda wildcards: (
            RUNS[wildcards.run].nodes if RUNS[wildcards.run].nodes > 1 else None
        ),
        # Or the executor would take `tasks` for tasks a card.
        tasks_per_gpu=lambda wildcards: 0 if RUNS[wildcards.run].nodes > 1 else None,
    params:
        identity=lambda wildcards: fingerprint(run_identity(RUNS[wildcards.run])),
        model=lambda wildcards, input: Path(input.model).parent,
        # Mutable state, so no output: a failed job's outputs are deleted, a run's saves and records must not be.
        root=lambda wildcards, output: Path(output.done).parents[1],
        preregistration=lambda wildcards: (
            f"--preregistration {shlex.quote(PREREGISTRATION)}"
            if RUNS[wildcards.run].kind == "formal"
            else ""
        ),
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/train.py --config {params.config:q} --run {wildcards.run:q} --model {params.model:q}"
        " --train-rows {input.train:q} --val-rows {input.val:q} --stats {input.stats:q} --runs-root {params.root:q}"
        " {params.preregistration} --log {log:q}"


rule train:
    input:
        expand(
            f"{RUN_ROOT}/{{run}}/done.json",
            run=[name for name, run in RUNS.items() if run.kind == "formal"],
        ),
