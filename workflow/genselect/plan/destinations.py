"""What a plan sends elsewhere, and whether the key for it is there: told before hours are spent, not after."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from genselect.config import Config


def destinations(config: Config, rules: Collection[str], environment: Mapping[str, str]) -> list[str]:
    """A sentence for each place outside this machine that the plan sends something to.

    Args:
        config: The configuration.
        rules: Names of the rules that have a job in the plan.
        environment: Of this process. Keys are read from it and shown to nobody.
    """
    told = []
    publish = config.publish
    if "publish" in rules and publish.repository is not None:
        seen_by = "public" if publish.public else "private"
        told.append(f"publish: {publish.repository} on the Hub, {seen_by}{_without('HF_TOKEN', environment)}")
    if "track_run" in rules and publish.tracking.kind == "wandb" and publish.tracking.mode == "online":
        whose = f"{publish.tracking.entity}/" if publish.tracking.entity else ""
        told.append(
            f"tracking: {whose}{publish.tracking.project} at Weights & Biases{_without('WANDB_API_KEY', environment)}"
        )
    return told


def _without(key: str, environment: Mapping[str, str]) -> str:
    return "" if environment.get(key) else f"; {key} is not set in this shell"
