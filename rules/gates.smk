# Gates: what must hold before a formal run starts. A failed one stops the plan and says what to change.
#
# needs: runs/<run>/done.json of the runs of kind memory_check, smoke and overfit
# makes: gates/<run>.json: the verdict with its numbers


rule check_gate:
    input:
        done=f"{RUN_ROOT}/{{run}}/done.json",
    output:
        verdict=f"{GATES}/{{run}}.json",
    log:
        f"{LOGS}/check_gate/{{run}}.log",
    conda:
        "../envs/train.yaml"
    params:
        identity=lambda wildcards: fingerprint(
            [
                RUNS[wildcards.run].assertions,
                RUNS[wildcards.run].min_gain,
                CONFIG.waived_gates.get(wildcards.run),
            ]
        ),
        directory=lambda wildcards, input: Path(input.done).parent,
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/check_gate.py --config {params.config:q} --run {wildcards.run:q}"
        " --directory {params.directory:q} --output {output.verdict:q} --log {log:q}"


rule gates:
    input:
        expand(f"{GATES}/{{run}}.json", run=gates(RUNS)),
