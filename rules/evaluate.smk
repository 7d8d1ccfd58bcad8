# The final word: every arm on the whole held-out population, and the comparison that was fixed before the formal run.
#
# needs: the built rows, the model; runs/<run>/done.json of the runs whose anchors are compared
# makes: evaluation/<name>/baselines.parquet, arms/<arm>.parquet, preregistration.json (before any formal run starts),
#        comparison.json and comparison.md, each with its seal


rule evaluate_baselines:
    input:
        questions=rules.build_rows.output.questions,
        partition=rules.build_rows.output.partition,
        stats=rules.build_rows.output.stats,
        seal=rules.build_rows.output.seal,
    output:
        rows=f"{EVALUATION}/baselines.parquet",
        seal=f"{EVALUATION}/baselines.parquet.seal.json",
    log:
        f"{LOGS}/evaluate_baselines.log",
    benchmark:
        f"{BENCHMARKS}/evaluate_baselines.tsv"
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        identity=fingerprint([CONFIG.evaluation.seed, CONFIG.evaluation.thresholds]),
        data=lambda wildcards, input: Path(input.questions).parent,
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/evaluate_baselines.py --config {params.config:q} --data {params.data:q}"
        " --output {output.rows:q} --log {log:q}"


# vLLM loads whole weights, and a save holds base and adapter apart. The folder goes when its arm has been played: it is as large as
# the model, and made again in minutes.
rule merge_anchor:
    input:
        done=lambda wildcards: f"{RUN_ROOT}/{ARMS.played[wildcards.arm].run}/done.json",
        model=f"{MODEL}/config.json",
    output:
        weights=temp(directory(f"{EVALUATION}/merged/{{arm}}")),
        record=f"{EVALUATION}/anchors/{{arm}}.json",
        seal=f"{EVALUATION}/anchors/{{arm}}.json.seal.json",
    log:
        f"{LOGS}/merge_anchor/{{arm}}.log",
    benchmark:
        f"{BENCHMARKS}/merge_anchor/{{arm}}.tsv"
    wildcard_constraints:
        arm=any_of(arm.name for arm in ARMS.played.values() if arm.run),
    conda:
        "../envs/train.yaml"
    resources:
        mem_mb=64000 if CONFIG.models.base.source != "made" else 4000,
        runtime=120,
    params:
        run=lambda wildcards, input: Path(input.done).parent,
        step=lambda wildcards: ARMS.played[wildcards.arm].step,
        model=lambda wildcards, input: Path(input.model).parent,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/merge_anchor.py --run-directory {params.run:q} --step {params.step}"
        " --model {params.model:q} --output-dir {output.weights:q} --record {output.record:q} --log {log:q}"


rule evaluate_arm:
    input:
        questions=rules.build_rows.output.questions,
        partition=rules.build_rows.output.partition,
        stats=rules.build_rows.output.stats,
        seal=rules.build_rows.output.seal,
        model=f"{MODEL}/config.json",
        merged=lambda wildcards: merged_weights(wildcards.arm),
    output:
        rows=f"{EVALUATION}/arms/{{arm}}.parquet",
        seal=f"{EVALUATION}/arms/{{arm}}.parquet.seal.json",
    log:
        f"{LOGS}/evaluate_arm/{{arm}}.log",
    benchmark:
        f"{BENCHMARKS}/evaluate_arm/{{arm}}.tsv"
    wildcard_constraints:
        arm=any_of(ARMS.played),
    conda:
        "../envs/train.yaml"
    # The engine takes the whole machine, as a run does; on a cluster it gets cores by the card (profiles/slurm).
    threads: workflow.cores or 1
    resources:
        # One data-parallel engine over the cards of the run whose episode the arms play.
        gpu=lambda wildcards: cards(RUNS[ARMS.like].cards),
        mem_mb=lambda wildcards: 64000 * cards(RUNS[ARMS.like].cards) or 16000,
        runtime=2880,
    params:
        identity=lambda wildcards: fingerprint(
            arm_identity(CONFIG, RUNS, ARMS, wildcards.arm)
        ),
        data=lambda wildcards, input: Path(input.questions).parent,
        model=lambda wildcards, input: input.merged or Path(input.model).parent,
        # Mutable state, so no output: a failed job's outputs are deleted, what it has played must not be.
        parts=lambda wildcards, output: Path(output.rows).parents[1]
        / "parts"
        / wildcards.arm,
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/evaluate_arm.py --config {params.config:q} --arm {wildcards.arm:q} --data {params.data:q}"
        " --model {params.model:q} --output {output.rows:q} --parts {params.parts:q} --log {log:q}"


# Written once: `ancient`, no identity and `protected`, so that neither a changed setting nor a touched input writes it anew after
# the fact. A comparison under other settings is refused, with what differs.
rule preregister:
    input:
        questions=ancient(rules.build_rows.output.questions),
        partition=ancient(rules.build_rows.output.partition),
        stats=ancient(rules.build_rows.output.stats),
        baselines=ancient(rules.evaluate_baselines.output.rows),
        arms=ancient(expand(rules.evaluate_arm.output.rows, arm=ARMS.before)),
    output:
        preregistration=protected(PREREGISTRATION),
        seal=protected(f"{PREREGISTRATION}.seal.json"),
    log:
        f"{LOGS}/preregister.log",
    conda:
        "../envs/data.yaml"
    params:
        data=lambda wildcards, input: Path(input.questions).parent,
        arms=lambda wildcards, input: Path(input.arms[0]).parent,
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/preregister.py --config {params.config:q} --data {params.data:q}"
        " --baselines {input.baselines:q} --arms {params.arms:q} --output {output.preregistration:q} --log {log:q}"


rule compare_arms:
    input:
        questions=rules.build_rows.output.questions,
        partition=rules.build_rows.output.partition,
        stats=rules.build_rows.output.stats,
        baselines=rules.evaluate_baselines.output.rows,
        baselines_seal=rules.evaluate_baselines.output.seal,
        arms=expand(rules.evaluate_arm.output.rows, arm=ARMS.played),
        seals=expand(rules.evaluate_arm.output.seal, arm=ARMS.played),
        preregistration=PREREGISTRATION,
    output:
        comparison=f"{EVALUATION}/comparison.json",
        text=f"{EVALUATION}/comparison.md",
        seal=f"{EVALUATION}/comparison.json.seal.json",
    log:
        f"{LOGS}/compare_arms.log",
    benchmark:
        f"{BENCHMARKS}/compare_arms.tsv"
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        identity=fingerprint([CONFIG.evaluation.identity(), CONFIG.waived_gates]),
        data=lambda wildcards, input: Path(input.questions).parent,
        arms=lambda wildcards, input: Path(input.arms[0]).parent,
        runs=RUN_ROOT,
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/compare_arms.py --config {params.config:q} --data {params.data:q}"
        " --baselines {input.baselines:q} --arms {params.arms:q} --preregistration {input.preregistration:q}"
        " --runs-root {params.runs:q} --output {output.comparison:q} --log {log:q}"


rule evaluate:
    input:
        # Without a formal run there is nobody to compare.
        rules.compare_arms.output if ARMS.trained else rules.evaluate_baselines.output,
