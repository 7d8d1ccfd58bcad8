# The untrained policy, played on built rows by the rollout engine, with no trainer.
#
# needs: the model, the built rows, the run that a rollout is like
# makes: rollouts/<rollout>/records/step_0.parquet, rollouts/<rollout>/rollout.json with its seal


rule rollout_policy:
    input:
        model=f"{MODEL}/config.json",
        rows=lambda wildcards: f"{DATA}/{CONFIG.rollouts[wildcards.rollout].rows}.parquet",
    output:
        records=f"{ROLLOUTS}/{{rollout}}/records/step_0.parquet",
        summary=f"{ROLLOUTS}/{{rollout}}/rollout.json",
        seal=f"{ROLLOUTS}/{{rollout}}/rollout.json.seal.json",
    log:
        f"{LOGS}/rollout_policy/{{rollout}}.log",
    benchmark:
        f"{BENCHMARKS}/rollout_policy/{{rollout}}.tsv"
    wildcard_constraints:
        rollout="|".join(map(re.escape, CONFIG.rollouts)) or "none",
    conda:
        "../envs/train.yaml"
    # The engine takes the whole machine, as a run does; on a cluster it gets cores by the card (profiles/slurm).
    threads: workflow.cores or 1
    resources:
        # One data-parallel engine over the cards of the run that it is like.
        gpu=lambda wildcards: cards(RUNS[CONFIG.rollouts[wildcards.rollout].like].cards),
        mem_mb=lambda wildcards: (
            64000 * cards(RUNS[CONFIG.rollouts[wildcards.rollout].like].cards) or 16000
        ),
        runtime=1440,
    params:
        identity=lambda wildcards: fingerprint(
            rollout_identity(
                CONFIG.rollouts[wildcards.rollout],
                RUNS[CONFIG.rollouts[wildcards.rollout].like],
            )
        ),
        model=lambda wildcards, input: Path(input.model).parent,
        folder=lambda wildcards, output: Path(output.summary).parent,
        # Mutable state, so no output: a failed job's outputs are deleted, what it has played must not be.
        parts=lambda wildcards, output: Path(output.summary).parent / "parts",
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/rollout_policy.py --config {params.config:q} --rollout {wildcards.rollout:q}"
        " --model {params.model:q} --rows {input.rows:q} --output-dir {params.folder:q} --parts {params.parts:q} --log {log:q}"
