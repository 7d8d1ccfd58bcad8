# The model that actor, critic and predictor start from.
#
# needs: the network (models.base.source: hub), models.base.path (local), or nothing (made: the miniature's, from scratch)
# makes: models/<dataset.name>/, whole, with base_model.json (what it is and where it comes from) and its seal

MODEL = (
    str(CONFIG.models.base.path)
    if CONFIG.models.base.source == "local"
    else f"{CONFIG.results}/models/{CONFIG.dataset.name}"
)

if CONFIG.models.base.source == "made":

    rule make_base_model:
        output:
            record=f"{MODEL}/base_model.json",
            seal=f"{MODEL}/base_model.json.seal.json",
            config=f"{MODEL}/config.json",
        log:
            f"{LOGS}/make_base_model.log",
        benchmark:
            f"{BENCHMARKS}/make_base_model.tsv"
        conda:
            "../envs/train.yaml"
        threads: 2
        resources:
            mem_mb=4000,
            runtime=30,
        params:
            identity=identity(
                CONFIG.models.base.made, CONFIG.prompt, CONFIG.dataset.generated
            ),
            folder=lambda wildcards, output: Path(output.record).parent,
            config=RESOLVED_CONFIG,
            scripts=SCRIPTS,
        shell:
            "exec python {params.scripts:q}/make_base_model.py --config {params.config:q} --output {params.folder:q} --log {log:q}"

elif CONFIG.models.base.source == "hub":

    rule fetch_model:
        output:
            record=f"{MODEL}/base_model.json",
            seal=f"{MODEL}/base_model.json.seal.json",
            config=f"{MODEL}/config.json",
        log:
            f"{LOGS}/fetch_model.log",
        benchmark:
            f"{BENCHMARKS}/fetch_model.tsv"
        conda:
            "../envs/data.yaml"
        resources:
            mem_mb=4000,
            runtime=240,
        params:
            identity=fingerprint(
                [CONFIG.models.base.repo_id, CONFIG.models.base.revision]
            ),
            folder=lambda wildcards, output: Path(output.record).parent,
            config=RESOLVED_CONFIG,
            scripts=SCRIPTS,
        shell:
            "exec python {params.scripts:q}/fetch_model.py --config {params.config:q} --output {params.folder:q} --log {log:q}"
