# The experiment as others receive it.
#
# needs: everything before it
# makes: publication/<name>/hub/ and publication/<name>/reading_copy/, each a tree with README.md and publication.json, and
#        publication/<name>/staged.json, which says what was staged. The trees are no outputs: Snakemake would delete the former one before
#        the new one stands. When `publish` is asked for: publication/<name>/receipt.json

from genselect.publishing.layout import adapter_folder

STAGED = f"{PUBLICATION}/staged.json"


rule stage_publication:
    input:
        rules.data.input,
        rules.gates.input,
        rules.evaluate.input,
        rules.report.input,
        expand(f"{RUN_ROOT}/{{run}}/done.json", run=RUNS),
        adapters=[
            adapter_folder(
                CONFIG.results, CONFIG.dataset.name, adapter.run, adapter.step
            )
            for adapter in CONFIG.publish.adapters
        ],
    output:
        staged=STAGED,
    log:
        f"{LOGS}/stage_publication.log",
    benchmark:
        f"{BENCHMARKS}/stage_publication.tsv"
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=4000,
        runtime=240,
    params:
        # What the trees hold and say beyond their inputs.
        identity=fingerprint(
            CONFIG.publish.model_dump(mode="json", exclude={"public", "tracking"})
        ),
        # The front page names where runs are tracked. No input: staging is no reason to tell a tracker anything.
        tracked=fingerprint(
            [
                path.read_text(encoding="utf-8")
                for run in RUNS
                if (path := Path(f"{CONFIG.results}/tracking/{run}/run.json")).exists()
            ]
        ),
        results=CONFIG.results,
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/stage_publication.py --config {params.config:q} --results {params.results:q} --log {log:q}"


rule stage:
    input:
        rules.stage_publication.output,


# By name only, never in `all`. On the machine where Snakemake itself runs: there the network is, and the token (HF_TOKEN), which is
# read from the environment and written nowhere.
localrules:
    publish,


rule publish:
    input:
        staged=STAGED,
    output:
        receipt=f"{PUBLICATION}/receipt.json",
    log:
        f"{LOGS}/publish.log",
    conda:
        "../envs/publish.yaml"
    params:
        tree=lambda wildcards, input: Path(input.staged).parent / "hub",
        repository=(
            f"--repository {shlex.quote(CONFIG.publish.repository)}"
            if CONFIG.publish.repository
            else ""
        ),
        public="--public" if CONFIG.publish.public else "",
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/publish.py --tree {params.tree:q} {params.repository} {params.public}"
        " --receipt {output.receipt:q} --log {log:q}"
