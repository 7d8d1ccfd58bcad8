# From the Hub, a local folder or nothing (the miniature) to one line a problem.
#
# needs: the network (source: hub), or dataset.local_dir (source: local), or nothing (source: generated)
# makes: data/<name>/shards/*.parquet, data/<name>/merged.jsonl with its judgments, statistics and seal

if CONFIG.dataset.source == "generated":

    rule make_mini_shards:
        output:
            shards=expand(f"{DATA}/shards/{{name}}", name=SHARDS),
        log:
            f"{LOGS}/make_mini_shards.log",
        conda:
            "../envs/data.yaml"
        params:
            identity=identity(CONFIG.dataset.generated),
            folder=lambda wildcards, output: Path(output.shards[0]).parent,
            problems=CONFIG.dataset.generated.problems,
            shards=CONFIG.dataset.generated.shards,
            seed=CONFIG.dataset.generated.seed,
            scripts=SCRIPTS,
        shell:
            "exec python {params.scripts:q}/make_mini_shards.py --output {params.folder:q} --seed {params.seed}"
            " --problems {params.problems} --shards {params.shards} --log {log:q}"

else:

    rule download_shard:
        input:
            # A local shard that was written anew is taken anew.
            lambda wildcards: (
                f"{CONFIG.dataset.local_dir}/{wildcards.name}.parquet"
                if CONFIG.dataset.source == "local"
                else []
            ),
        output:
            shard=f"{DATA}/shards/{{name}}.parquet",
            seal=f"{DATA}/shards/{{name}}.parquet.seal.json",
        log:
            f"{LOGS}/download_shard/{{name}}.log",
        benchmark:
            f"{BENCHMARKS}/download_shard/{{name}}.tsv"
        conda:
            "../envs/data.yaml"
        resources:
            mem_mb=2000,
            runtime=240,
        params:
            identity=identity(CONFIG.dataset),
            config=RESOLVED_CONFIG,
            scripts=SCRIPTS,
        shell:
            "exec python {params.scripts:q}/download_shard.py --config {params.config:q} --name {wildcards.name:q}.parquet"
            " --output {output.shard:q} --log {log:q}"


rule merge_candidates:
    input:
        shards=expand(f"{DATA}/shards/{{name}}", name=SHARDS),
    output:
        merged=f"{DATA}/merged.jsonl",
        judgments=f"{DATA}/merged.judgments.jsonl",
        stats=f"{DATA}/merge_stats.json",
        seal=f"{DATA}/merged.jsonl.seal.json",
    log:
        f"{LOGS}/merge_candidates.log",
    benchmark:
        f"{BENCHMARKS}/merge_candidates.tsv"
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        identity=fingerprint(CONFIG.dataset.problem_types),
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/merge_candidates.py --shards {input.shards:q} --output {output.merged:q}"
        " --stats {output.stats:q} --config {params.config:q} --workers {threads} --log {log:q}"
