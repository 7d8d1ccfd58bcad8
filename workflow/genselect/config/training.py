"""The models, and the runs that train them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from genselect.config.base import RUNTIME, Section

Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{7,40}$")]


class WarmStart(Section):
    """How the miniature's base model is made (`models.base.source: made`)."""

    seed: int = 1
    """Seeds weights and transcripts."""
    copy_steps: int = Field(60, ge=0)
    """Steps of the first phase, which teaches to copy an answer."""
    steps: int = Field(400, ge=1)
    """Steps of the second phase, over whole episodes."""
    careful_share: float = Field(0.5, ge=0, le=1)
    """Share of transcripts of the careful policy, under its own system prompt."""


class BaseModel(Section):
    """The model that actor, critic and predictor start from."""

    source: Literal["hub", "local", "made"] = "hub"
    """`hub` downloads, `local` uses `path`, `made` trains the miniature's tiny model from scratch."""
    repo_id: str = "Qwen/Qwen3.5-9B"
    """Model repository on the Hugging Face Hub (`source: hub`)."""
    revision: Revision = "c202236"
    """Commit of that repository, as hex."""
    path: Path | None = None
    """Folder of the model (`source: local`)."""
    made: WarmStart = WarmStart()
    """The miniature's warm start (`source: made`)."""
    template_options: dict[str, Any] = {}
    """Passed to the chat template of every prompt, such as `enable_thinking: false`."""

    @model_validator(mode="after")
    def _a_local_model_names_its_folder(self) -> BaseModel:
        if self.source == "local" and self.path is None:
            raise ValueError("source is local, so path must name the model's folder")
        return self


class Models(Section):
    """The models."""

    base: BaseModel = BaseModel()
    """What training starts from."""


class Start(Section):
    """What a run's models start from."""

    run: str | None = None
    """Another run, whose save is continued from; null starts from the initial adapters."""
    step: int | None = Field(None, ge=1)
    """The save of that run."""
    data_state: bool = False
    """Go on with that run's place in the data, too."""

    @model_validator(mode="after")
    def _run_and_step_go_together(self) -> Start:
        if (self.run is None) != (self.step is None):
            raise ValueError("run and step go together: name both, or neither")
        return self


class Schedule(Section):
    """How long, and how often what."""

    steps: int = Field(200, ge=1)
    """Steps of the run, counted from the initial adapters."""
    problems: int = Field(64, ge=1)
    """Problems a step."""
    samples: int = Field(8, ge=1)
    """Episodes a problem."""
    mini_batch: int = Field(32, ge=1)
    """Problems a mini-batch of the updates."""
    epochs: int = Field(2, ge=1)
    """Passes over a step's episodes."""
    critic_warmup: int = Field(32, ge=0)
    """Steps in which only the value models learn."""
    validate_every: int = 5
    """Steps between validations; 0 for none."""
    save_every: int = Field(5, ge=1)
    """Steps between saves."""
    anchor_every: int | None = Field(5, ge=1)
    """Saves at multiples of this are kept for good."""
    keep_latest: int = Field(1, ge=1)
    """Latest saves kept besides."""


class Reward(Section):
    """What an episode is worth."""

    format_score: float = 0.1
    """For a submission that is wrong."""
    cost_per_explore: float = Field(0.1, ge=0)
    """Price of revealing a candidate."""


class PotentialPart(Section):
    """One part of the potential."""

    name: str
    """`submit_probability` or `leading_share`."""
    weight: float
    """Its weight in the sum."""


class Predictor(Section):
    """The submit predictor."""

    enabled: bool = True
    """Train it."""
    supervision: Literal["submit_state", "all_states"] = "submit_state"
    """The states that teach it."""


class Optimiser(Section):
    """Learning rates and the shape of the adapters."""

    actor_lr: float = Field(5e-5, gt=0)
    """Of the policy."""
    actor_lr_schedule: Literal["constant", "cosine"] = "constant"
    """`cosine` lets the policy's rate fall along a half cosine to a tenth of it by the last step."""
    critic_lr: float = Field(2e-4, gt=0)
    """Of the value model."""
    predictor_lr: float = Field(6e-5, gt=0)
    """Of the submit predictor."""
    lora_rank: int = Field(64, ge=1)
    """Rank of each adapter."""
    lora_alpha: int = Field(128, ge=1)
    """Scale of each adapter, times its rank."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount."""
    lam: float = Field(1.0, ge=0, le=1)
    """GAE's lambda."""
    clip: float = Field(0.2, gt=0)
    """PPO's clip range."""


class Tokens(Section):
    """Token caps and budgets."""

    prompt: int = Field(8192, ge=1)
    """Longest prompt."""
    response: int = Field(73728, ge=1)
    """Longest response: turns and revealed candidates together."""
    turn: int = Field(16384, ge=1)
    """Longest turn of the policy."""
    actor_budget: int = Field(81920, ge=1)
    """Tokens in a forward and backward of the policy, a card."""
    critic_budget: int = Field(196608, ge=1)
    """Of the value model."""
    predictor_budget: int = Field(81920, ge=1)
    """Of the submit predictor."""
    packing: bool = True
    """Pack rows without padding."""
    packed_limit: float = Field(1e-3, gt=0, json_schema_extra=RUNTIME)
    """Largest difference between a packed and a padded forward that a smoke run lets pass, in nats (values, logits). In bf16 kernels
    differ by more than in fp32."""


class Layout(Section):
    """Which of a run's cards do what (`docs/layouts.md`)."""

    rollout: int = Field(0, ge=0)
    """Cards that only roll out; 0 lets the training cards do it, in turn."""
    judge: int = Field(0, ge=0)
    """Cards kept for the judge; with `judge.kind: vllm` the run starts its server there."""


class Run(Section):
    """One training run."""

    kind: Literal["memory_check", "smoke", "overfit", "formal"] = "formal"
    """What it is for; the first three are gates of the formal run. A smoke run with `synthetic_steps` is a memory check, too."""
    algorithm: str = "ppo"
    """`ppo` (GAE and a critic), `grpo`, or another advantage estimator of verl's by its name."""
    data: str = "all"
    """`all` built rows, or an overfit set by name."""
    start: Start = Start()
    """What its models start from."""
    schedule: Schedule = Schedule()
    """Its length, its batch, and how often it validates and saves."""
    reward: Reward = Reward()
    """The pieces of an episode's score."""
    optimiser: Optimiser = Optimiser()
    """How it learns."""
    predictor: Predictor = Predictor()
    """The third model, which predicts whether a submission would be correct."""
    potential: list[PotentialPart] = []
    """Parts of the shaping potential; empty for none."""
    tokens: Tokens = Tokens()
    """Caps and budgets."""
    max_turns: int = Field(12, ge=1)
    """Turns after which an episode ends."""
    temperature: float = Field(1.0, gt=0)
    """Of sampling, in training and validation."""
    seed: int = 1
    """Seeds data order and sampling."""
    cards: int = Field(8, ge=1)
    """Cards it takes. All of them train, but for those that `layout` gives to something else; on a machine without cards, one trains."""
    layout: Layout = Layout()
    """Which of the cards do not train."""
    nodes: int = Field(1, ge=1)
    """Nodes it trains on, with as many cards each; more than one under Slurm only (`docs/slurm.md`)."""
    synthetic_steps: int = Field(0, ge=0)
    """Steps at the full token budgets, on made-up rows, before the first real one: the memory check."""
    assertions: list[str] = []
    """One-line expressions over the last step's metrics that must hold, for a gate to pass."""
    guards: dict[str, dict[str, Any] | None] = Field({}, json_schema_extra=RUNTIME)
    """Changes to the guards by name (`docs/guards.md`): fields such as `limit` or `level`, a new guard, or null to leave one out."""
    min_gain: float = 0.0
    """For `overfit`: how much the training verdict must rise, from the untrained policy's steps to the last three, for the gate to pass."""
    verl: dict[str, Any] = {}
    """verl's own keys (dotted), set last. They count as identity."""
    extends: str | None = None
    """A run whose settings this one takes over."""
    set: dict[str, Any] = {}
    """Dotted keys that differ from it."""
    expect_difference: list[str] | None = None
    """Exactly the keys that may differ from it; null does not check."""
    timeout_s: float = Field(864000.0, gt=0, json_schema_extra=RUNTIME)
    """Seconds after which a launch is ended."""
    step_s: float | None = Field(None, gt=0, json_schema_extra=RUNTIME)
    """Seconds a step takes, for the plan's estimate; null takes them from the steps that were made in this results folder."""

    @model_validator(mode="after")
    def _what_goes_together(self) -> Run:
        if self.kind == "memory_check" and self.synthetic_steps == 0:
            raise ValueError("a memory_check needs synthetic_steps of 1 or more")
        if self.potential and self.optimiser.gamma != 1.0:
            raise ValueError(
                "potential is set and optimiser.gamma is not 1: the estimator discounts by token and the shaping by transition, so "
                "the optimal policy would change; set gamma to 1 or leave the potential out"
            )
        apart = self.layout.rollout + self.layout.judge
        if apart and self.nodes > 1:
            raise ValueError(
                f"layout gives cards of one node to rollout or judge, and nodes is {self.nodes}; leave layout out, or set nodes to 1"
            )
        if apart and self.train_cards < 1:
            raise ValueError(
                f"layout takes {apart} of {self.cards} cards ({self.layout.rollout} to roll out, {self.layout.judge} for the judge) and "
                f"leaves none to train; set cards to {apart + 1} or more, or give layout fewer"
            )
        episodes = self.schedule.mini_batch * self.schedule.samples
        if apart and episodes % self.train_cards:
            raise ValueError(
                f"layout leaves {self.train_cards} of {self.cards} cards to train, which do not share a mini-batch of {episodes} "
                f"episodes (schedule.mini_batch times schedule.samples) evenly; change layout, cards, or the mini-batch"
            )
        return self

    @property
    def train_cards(self) -> int:
        """Cards that train."""
        return self.cards - self.layout.rollout - self.layout.judge
