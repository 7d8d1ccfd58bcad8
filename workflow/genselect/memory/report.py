"""The prediction as a table for a person, and as JSON."""

from __future__ import annotations

from typing import Any

from genselect.memory.advice import advise
from genselect.memory.predict import FREE, GIB, Prediction, Stage
from genselect.memory.weights import adapter_weights, all_weights

_COLUMNS = {
    "weights": "weights",
    "moments": "Adam",
    "gradients": "grads",
    "gathered": "gathered",
    "activations": "activ.",
    "other models": "others",
    "engine": "engine",
    "buffers": "buffers",
    "cached elsewhere": "cached",
    "contexts": "contexts",
}


def as_text(prediction: Prediction, run: str) -> str:
    """A page: the model, the table (GiB on one card), the engine's cache, the verdict, the advice."""
    p = prediction
    weights = all_weights(p.architecture, "policy")
    rank = p.settings.model("actor").rank
    lines = [
        f"{run}: {p.layout}, {p.card / GIB:.1f} GiB a card; GiB on one card",
        f"model: {p.architecture.name}: {sum(weight.count for weight in weights):,} weights, adapters of rank {rank}: "
        f"{adapter_weights(p.architecture, rank) if rank else 0:,}",
        "",
        _row(["stage", "cards", "tokens", *_COLUMNS.values(), "total", "free"]),
    ]
    lines += [_row(_cells(p, stage)) for stage in p.stages]
    lines += ["", *_words(p), ""]
    lines += _verdict(p, run)
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return "".join(
        cell.ljust(18) if column == 0 else cell.ljust(9) if column == 1 else cell.rjust(9)
        for column, cell in enumerate(cells)
    ).rstrip()


def _cells(prediction: Prediction, stage: Stage) -> list[str]:
    parts = [stage.parts.get(name, 0) for name in _COLUMNS]
    numbers = [f"{size / GIB:.1f}" if size else "-" for size in parts]
    tokens = f"{stage.tokens:,}" if stage.tokens else "-"
    free = (prediction.card - stage.total) / prediction.card
    return [stage.name, stage.cards, tokens, *numbers, f"{stage.total / GIB:.1f}", f"{free:.0%}"]


def _words(p: Prediction) -> list[str]:
    engine = p.engine
    words = [
        f"engine: of its {engine.share / GIB:.1f} GiB, weights take {engine.weights / GIB:.1f}, a forward {engine.working / GIB:.1f}, and "
        f"rows have {engine.cache / GIB:.1f}: {engine.rows:.1f} rows of {p.settings.engine.longest:,} tokens at "
        f"{engine.row / GIB:.2f} each ({engine.state / 2**20:.0f} MiB of it linear-attention state); up to {engine.wanted} play at once.",
        "gathered: weights of the layers at work. others: cut weights and Adam of the models at rest. cached: what another process's "
        "allocator keeps from its last stage.",
        "contexts: assumed (--context), not computed. Fragmentation is not in the table: that is what the free tenth is for.",
    ]
    if any(stage.cards == "judge" for stage in p.stages):
        words.append(
            "judge: the share that its server takes by itself; whether its model fits into it is not looked at here."
        )
    return words


def _verdict(p: Prediction, run: str) -> list[str]:
    worst = p.worst
    margin = (p.card - worst.total) / GIB
    said = f"peak {worst.total / GIB:.1f} GiB, in {worst.name} on the {worst.cards} cards; {margin:.1f} GiB of the card free"
    if p.fits:
        return [f"fits: {said} ({FREE:.0%} must be)"]
    lines = [f"does not fit: {said} ({FREE:.0%} must be)"]
    cached = worst.parts.get("cached elsewhere", 0)
    if cached:
        lines.append(f"Of the peak, {cached / GIB:.1f} GiB are cached by another process and in nobody's use.")
    advice = advise(p, run)
    lines += ["What to change, cheapest first:", *(f"{n}. {entry.text}" for n, entry in enumerate(advice, 1))]
    return lines


def as_json(prediction: Prediction, run: str) -> dict[str, Any]:
    """The same, in bytes."""
    p = prediction
    return {
        "run": run,
        "model": p.architecture.name,
        "layout": {"train": p.layout.train, "rollout": p.layout.rollout, "judge": p.layout.judge},
        "unit": "bytes",
        "card": p.card,
        "stages": [
            {
                "stage": stage.name,
                "cards": stage.cards,
                "model": stage.model,
                "tokens": stage.tokens,
                "parts": dict(stage.parts),
                "total": stage.total,
                "free": p.card - stage.total,
            }
            for stage in p.stages
        ],
        "engine": {
            "share": p.engine.share,
            "weights": p.engine.weights,
            "working": p.engine.working,
            "cache": p.engine.cache,
            "row": p.engine.row,
            "rows": p.engine.rows,
            "rows_wanted": p.engine.wanted,
        },
        "peak": {"stage": p.worst.name, "cards": p.worst.cards, "total": p.worst.total},
        "fits": p.fits,
        "advice": [{"kind": entry.kind, "change": entry.text} for entry in advise(p, run)],
    }
