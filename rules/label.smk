# Whether each candidate's boxed answer equals the expected one.
#
# needs: data/<name>/merged.jsonl; a judge (judge.kind: vllm serves one on the job's own card, endpoints asks running ones,
#        rule needs none)
# makes: data/<name>/labels.jsonl with its seal; data/<name>/labels/<shard>/journal, which survives stops and reruns


rule label_shard:
    input:
        merged=rules.merge_candidates.output.merged,
        merged_seal=rules.merge_candidates.output.seal,
        prompt=CONFIG.judge.prompt.path or [],
    output:
        labels=f"{DATA}/labels/{{shard}}/labels.jsonl",
        seal=f"{DATA}/labels/{{shard}}/labels.jsonl.seal.json",
    log:
        f"{LOGS}/label_shard/{{shard}}.log",
    benchmark:
        f"{BENCHMARKS}/label_shard/{{shard}}.tsv"
    conda:
        "../envs/judge.yaml"
    threads: CONFIG.judge.cascade.symbolic_workers
    resources:
        # The server that it owns takes one card; docs/slurm.md says how many each rule takes.
        gpu=1 if CONFIG.judge.kind == "vllm" else 0,
        mem_mb=64000 if CONFIG.judge.kind == "vllm" else 4000,
        runtime=1440 if CONFIG.judge.kind != "rule" else 240,
    params:
        identity=identity(CONFIG.judge),
        # Mutable state, so no output: a failed job's outputs are deleted, the journal must not be.
        journal=lambda wildcards: f"{DATA}/labels/{wildcards.shard}/journal",
        # Another number of shares finds the verdicts of the former ones there.
        journals=lambda wildcards, output: Path(output.labels).parents[1],
        shard=lambda wildcards: wildcards.shard.replace("-of-", "/"),
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/label_candidates.py --merged {input.merged:q} --config {params.config:q}"
        " --shard {params.shard} --journal {params.journal:q} --reuse {params.journals:q} --output {output.labels:q} --log {log:q}"


rule gather_labels:
    input:
        merged=rules.merge_candidates.output.merged,
        shards=expand(rules.label_shard.output.labels, shard=LABEL_SHARDS),
        seals=expand(rules.label_shard.output.seal, shard=LABEL_SHARDS),
    output:
        labels=f"{DATA}/labels.jsonl",
        seal=f"{DATA}/labels.jsonl.seal.json",
    log:
        f"{LOGS}/gather_labels.log",
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/gather_labels.py --merged {input.merged:q} --shards {input.shards:q}"
        " --output {output.labels:q} --log {log:q}"
