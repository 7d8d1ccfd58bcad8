# Rows of eight candidates, one to seven of them correct, and the train / held-out line.
#
# needs: data/<name>/merged.jsonl, data/<name>/labels.jsonl
# makes: data/<name>/{questions.jsonl,train.parquet,val.parquet,partition.json,stats.json} and their seal


rule build_rows:
    input:
        merged=rules.merge_candidates.output.merged,
        judgments=rules.merge_candidates.output.judgments,
        labels=rules.gather_labels.output.labels,
        labels_seal=rules.gather_labels.output.seal,
    output:
        questions=f"{DATA}/questions.jsonl",
        train=f"{DATA}/train.parquet",
        val=f"{DATA}/val.parquet",
        partition=f"{DATA}/partition.json",
        stats=f"{DATA}/stats.json",
        seal=f"{DATA}/stats.json.seal.json",
    log:
        f"{LOGS}/build_rows.log",
    benchmark:
        f"{BENCHMARKS}/build_rows.tsv"
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        identity=identity(CONFIG.build, CONFIG.prompt),
        folder=lambda wildcards, output: Path(output.stats).parent,
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/build_rows.py --merged {input.merged:q} --labels {input.labels:q}"
        " --config {params.config:q} --output-dir {params.folder:q} --log {log:q}"


# The seals are named, too: Snakemake would let a deleted one be as long as nothing after it has to run.
rule data:
    input:
        rules.build_rows.output,
        rules.merge_candidates.output.seal,
        rules.gather_labels.output.seal,
