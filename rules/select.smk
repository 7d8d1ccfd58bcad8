# Fixed rows for the overfitting control, chosen from how samples of a policy came out.
#
# needs: the built rows, or another set; the records of a rollout, or those of a run that is done
# makes: data/<name>/overfit/<set>/{train,val}.parquet, selection.csv and its seal; of a set of another set partition.json, too


rule select_overfit:
    input:
        rows=lambda wildcards: rows_of(CONFIG.overfit_sets[wildcards.set].of, "train"),
        selection=lambda wildcards: selection_of(CONFIG.overfit_sets[wildcards.set].of),
        draws=lambda wildcards: drawn(CONFIG.overfit_sets[wildcards.set].draws),
        second_draws=lambda wildcards: drawn(
            CONFIG.overfit_sets[wildcards.set].second_draws
        ),
    output:
        train=f"{OVERFIT}/{{set}}/train.parquet",
        val=f"{OVERFIT}/{{set}}/val.parquet",
        selection=f"{OVERFIT}/{{set}}/selection.csv",
        seal=f"{OVERFIT}/{{set}}/selection.csv.seal.json",
    log:
        f"{LOGS}/select_overfit/{{set}}.log",
    wildcard_constraints:
        set="|".join(map(re.escape, CONFIG.overfit_sets)) or "none",
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        identity=lambda wildcards: identity(CONFIG.overfit_sets[wildcards.set]),
        folder=lambda wildcards, output: Path(output.train).parent,
        records=lambda wildcards: record_files(
            CONFIG.overfit_sets[wildcards.set].draws, "--records"
        ),
        second_records=lambda wildcards: record_files(
            CONFIG.overfit_sets[wildcards.set].second_draws, "--second-records"
        ),
        bands=lambda wildcards: ",".join(
            map(str, CONFIG.overfit_sets[wildcards.set].bands)
        ),
        wanted=lambda wildcards: CONFIG.overfit_sets[wildcards.set],
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/select_overfit.py --rows {input.rows:q} {params.records}"
        " {params.second_records} --output-dir {params.folder:q} --bands {params.bands}"
        " --per-band {params.wanted.per_band} --samples {params.wanted.samples}"
        " --max-length-capped {params.wanted.max_length_capped} --max-mean-tokens {params.wanted.max_mean_tokens}"
        " --seed {params.wanted.seed} --log {log:q}"
