# The report: pictures of every stage, and one page that holds them together.
#
# needs: everything before it
# makes: report/<name>/index.html (the page, one file), report/<name>/figures/*.svg with a .png beside each.
#        Snakemake's own report of the same pictures: docs/report.md


# Asks Snakemake itself; `run`, since whichever environment a conda rule has, it need not hold Snakemake.
rule graph_rules:
    output:
        graph=f"{REPORT}/rules.dot",
    log:
        f"{LOGS}/graph_rules.log",
    params:
        # Another set of runs or arms may need other rules.
        identity=fingerprint([list(RUNS), list(ARMS.played)]),
    run:
        write_rule_graph(
            workflow.main_snakefile, RESOLVED_CONFIG, output.graph, log[0]
        )


rule draw_rules:
    input:
        graph=rules.graph_rules.output.graph,
    output:
        pictures([picturebook.RULES], "How it was made"),
    log:
        f"{LOGS}/draw_rules.log",
    conda:
        "../envs/data.yaml"
    params:
        picture=lambda wildcards, output: output[0],
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/draw_rules.py --graph {input.graph:q} --output {params.picture:q} --log {log:q}"


rule draw_data:
    input:
        merge_stats=rules.merge_candidates.output.stats,
        questions=rules.build_rows.output.questions,
        stats=rules.build_rows.output.stats,
    output:
        pictures(picturebook.DATA, "Data"),
    log:
        f"{LOGS}/draw_data.log",
    benchmark:
        f"{BENCHMARKS}/draw_data.tsv"
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        data=lambda wildcards, input: Path(input.stats).parent,
        per_row=CONFIG.build.candidates_per_row,
        folder=lambda wildcards, output: Path(output[0]).parent,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/draw_data.py --data {params.data:q} --per-row {params.per_row}"
        " --output-dir {params.folder:q} --log {log:q}"


rule draw_run:
    input:
        done=f"{RUN_ROOT}/{{run}}/done.json",
        comparison=rules.compare_arms.output.comparison if ARMS.trained else [],
    output:
        pictures(picturebook.RUN, "Training", folder="{run}/", run="{run}"),
    log:
        f"{LOGS}/draw_run/{{run}}.log",
    benchmark:
        f"{BENCHMARKS}/draw_run/{{run}}.tsv"
    wildcard_constraints:
        run=any_of(RUNS),
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        directory=lambda wildcards, input: Path(input.done).parent,
        comparison=lambda wildcards, input: (
            f"--comparison {shlex.quote(input.comparison)}" if input.comparison else ""
        ),
        folder=lambda wildcards, output: Path(output[0]).parent,
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/draw_run.py --config {params.config:q} --run {wildcards.run:q}"
        " --run-directory {params.directory:q} {params.comparison} --output-dir {params.folder:q} --log {log:q}"


rule draw_evaluation:
    input:
        comparison=rules.compare_arms.output.comparison,
    output:
        pictures(picturebook.EVALUATION, "Evaluation"),
    log:
        f"{LOGS}/draw_evaluation.log",
    benchmark:
        f"{BENCHMARKS}/draw_evaluation.tsv"
    conda:
        "../envs/data.yaml"
    params:
        folder=lambda wildcards, output: Path(output[0]).parent,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/draw_evaluation.py --comparison {input.comparison:q} --output-dir {params.folder:q} --log {log:q}"


rule write_page:
    input:
        rules.draw_rules.output,
        rules.draw_data.output,
        expand(rules.draw_run.output, run=picturebook.reported_runs(RUNS)),
        rules.draw_evaluation.output if ARMS.trained else [],
        rules.gates.input,
        expand(f"{RUN_ROOT}/{{run}}/done.json", run=RUNS),
        stats=rules.build_rows.output.stats,
        seal=rules.build_rows.output.seal,
        comparison=rules.compare_arms.output if ARMS.trained else [],
    output:
        page=report(
            PAGE,
            caption="../workflow/genselect/report/captions/page.rst",
            category="Summary",
            labels={"picture": "The whole experiment on one page"},
        ),
    log:
        f"{LOGS}/write_page.log",
    benchmark:
        f"{BENCHMARKS}/write_page.tsv"
    conda:
        "../envs/data.yaml"
    params:
        # What the page says beyond its inputs.
        identity=fingerprint([CONFIG.model_dump(mode="json")]),
        results=CONFIG.results,
        config=RESOLVED_CONFIG,
        scripts=SCRIPTS,
    shell:
        "exec python {params.scripts:q}/write_page.py --config {params.config:q} --results {params.results:q}"
        " --output {output.page:q} --log {log:q}"


rule report:
    input:
        rules.write_page.output,
