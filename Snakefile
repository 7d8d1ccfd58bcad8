# genselect: from raw GenSelect shards to a published verdict.
#
#   snakemake --profile profiles/mini            the miniature, on this machine
#   snakemake --profile profiles/mini -n         the plan
#   snakemake --configfile config/config.yaml …  the full experiment (README: "The full experiment")
#
# Rules are in rules/, in the order they run; what they do is in workflow/genselect/.

from snakemake.utils import min_version

min_version("9.27")

# Without a configuration the miniature is meant: it runs anywhere.
if not workflow.configfiles:

    configfile: "config/mini.yaml"


# The front page of Snakemake's own report.
report: "workflow/genselect/report/captions/workflow.rst"


include: "rules/common.smk"
include: "rules/dataset.smk"
include: "rules/label.smk"
include: "rules/build.smk"
include: "rules/models.smk"
include: "rules/rollout.smk"
include: "rules/select.smk"
include: "rules/gates.smk"
include: "rules/train.smk"
include: "rules/evaluate.smk"
include: "rules/report.smk"
include: "rules/tracking.smk"
include: "rules/publish.smk"


localrules:
    all,
    data,
    gates,
    train,
    evaluate,
    graph_rules,
    report,
    stage,


rule all:
    default_target: True
    input:
        rules.data.input,
        rules.gates.input,
        rules.train.input,
        rules.evaluate.input,
        rules.report.input,
        rules.stage.input,
