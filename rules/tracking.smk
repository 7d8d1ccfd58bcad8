# What of the runs goes elsewhere: mirrors for a tracker, and adapters that others may load.
#
# needs: runs/<run>/done.json, the model, the comparison of a policy that is compared
# makes: tracking/<run>/ (docs/tracking.md); publication/<name>/adapters/<run>/global_step_<n>/actor/lora_adapter/

from genselect.publishing.adapters import check_adapters

try:
    check_adapters(CONFIG, RUNS)
except GenselectError as error:
    raise WorkflowError(str(error)) from None


# On the machine where Snakemake itself runs: online, the key (WANDB_API_KEY) is in its environment.
localrules:
    track_run,
    sync_tracking,


# Only finished runs: one that still trains is mirrored by the program, by hand, as often as one likes.
rule track_run:
    input:
        done=f"{RUN_ROOT}/{{run}}/done.json",
        comparison=lambda wildcards: compared(wildcards.run),
    output:
        synced=f"{CONFIG.results}/tracking/{{run}}/synced.json",
    log:
        f"{LOGS}/track_run/{{run}}.log",
    wildcard_constraints:
        run=any_of(RUNS),
    conda:
        "../envs/publish.yaml"
    params:
        # The folder itself is mutable state, which Snakemake must not delete: it knows what W&B has.
        identity=fingerprint(CONFIG.publish.tracking.model_dump(mode="json")),
        results=CONFIG.results,
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/track_run.py --config {params.config:q} --run {wildcards.run:q} --results {params.results:q}"
        " --output {output.synced:q} --log {log:q}"


rule sync_tracking:
    input:
        expand(rules.track_run.output.synced, run=RUNS),


rule export_adapter:
    input:
        done=f"{RUN_ROOT}/{{run}}/done.json",
        model=f"{MODEL}/config.json",
        comparison=lambda wildcards: compared(wildcards.run, int(wildcards.step)),
    output:
        # Of two small files and a card: whatever is missing is made again from the save.
        adapter=directory(
            f"{PUBLICATION}/adapters/{{run}}/global_step_{{step}}/actor/lora_adapter"
        ),
    log:
        f"{LOGS}/export_adapter/{{run}}@{{step}}.log",
    wildcard_constraints:
        run=any_of(RUNS),
        step=r"\d+",
    conda:
        "../envs/train.yaml"
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        results=CONFIG.results,
        model=lambda wildcards, input: Path(input.model).parent,
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/export_adapter.py --config {params.config:q} --run {wildcards.run:q} --step {wildcards.step}"
        " --results {params.results:q} --model {params.model:q} --output-dir {output.adapter:q} --log {log:q}"
