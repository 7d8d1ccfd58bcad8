"""Which part of the experiment each rule belongs to, for pictures and tables."""

GROUPS: dict[str, str] = {
    **dict.fromkeys(("make_mini_shards", "download_shard", "merge_candidates", "label_shard", "gather_labels", "build_rows"), "data"),
    **dict.fromkeys(("fetch_model", "make_base_model"), "model"),
    **dict.fromkeys(("rollout_policy", "select_overfit", "check_gate"), "gates"),
    "train_run": "training",
    **dict.fromkeys(("evaluate_baselines", "merge_anchor", "evaluate_arm", "preregister", "compare_arms"), "evaluation"),
    **dict.fromkeys(("graph_rules", "draw_rules", "draw_data", "draw_run", "draw_evaluation", "write_page"), "report"),
    **dict.fromkeys(("track_run", "export_adapter", "stage_publication", "publish"), "publication"),
}  # fmt: skip
"""Part by rule."""

#: Rules that only collect what others made.
TARGETS = frozenset({"all", "data", "gates", "train", "evaluate", "report", "stage", "sync_tracking"})
