"""What is published, where, and how runs are mirrored to a tracker."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from genselect.config.base import Section

#: A repository of the Hub.
Repository = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")]


class PublishedSave(Section):
    """A save of a run that leaves the machine."""

    run: str
    """A run by name."""
    step: int = Field(ge=1)
    """A step whose save is kept."""


class Tracking(Section):
    """Where training runs are mirrored. `metrics.jsonl` of each run stays the truth."""

    kind: Literal["wandb", "trackio", "tensorboard"] = "wandb"
    """Which tracker `snakemake sync_tracking` writes for (`docs/tracking.md`). All three are in `envs/publish.yaml`; the miniature's
    environment lacks Trackio."""
    mode: Literal["offline", "online"] = "offline"
    """`offline` writes a folder under `results/tracking/`; `online` sends to W&B, and needs a key (`WANDB_API_KEY`)."""
    project: str = "genselect"
    """The tracker's project."""
    entity: str | None = None
    """W&B's team or user; null is the key's own."""
    trajectories: int = Field(32, ge=0)
    """Sampled trajectories that go along as a table, from a run's first, middle and last step."""


class Publish(Section):
    """The experiment as others receive it. Nothing leaves the machine unless `repository` is set and `publish` is asked for."""

    repository: Repository | None = None
    """Dataset repository on the Hugging Face Hub (`owner/name`); null publishes into a local folder."""
    public: bool = False
    """Make the repository public. It is created private, and only this makes it public."""
    reading_copy: bool = True
    """Stage a second tree for GitHub: without per-token arrays, archives, and files over 100 MB."""
    title: str | None = None
    """Title of the front page; null is made from the experiment's name."""
    question: str | None = None
    """The question that the experiment answers; null is made from the preregistered comparison."""
    links: dict[str, str] = {}
    """Further links on the front page, address by label."""
    licence: str = "cc-by-4.0"
    """Licence of the published data, as a dataset card names it. OpenMathReasoning's is CC BY 4.0, and rows hold its text."""
    adapters: list[PublishedSave] = []
    """Policies whose LoRA adapter is published, for `PeftModel.from_pretrained`. No weight is published unless it is named here,
    under `saves` or by `base_model`."""
    saves: list[PublishedSave] = []
    """Saves that are published whole, so that others can go on training from them."""
    base_model: bool = False
    """Publish the base model as well. Only where the workflow made it (`models.base.source: made`): another machine would make other
    weights of the same seed. A model of the Hub is fetched from its own repository."""
    leave_out: list[str] = []
    """Further files that stay here: patterns relative to `results/`, such as `runs/smoke/**`."""
    gated_benchmarks: list[str] = ["hle", "gpqa"]
    """Benchmarks whose questions may not be published: a file with rows of one is refused by name."""
    max_files: int = Field(90_000, ge=1)
    """Files a tree may hold before folders of finished runs are packed into a tar each; the Hub recommends below 100,000."""
    tracking: Tracking = Tracking()
    """The tracker."""
