"""What a plan says about keys and the outside, before it is started."""

from __future__ import annotations

from typing import Any

import pytest

from genselect.config import Config, check_config
from genselect.plan.destinations import destinations

EVERY_RULE = {"publish", "track_run", "train_run"}
KEYS = {"HF_TOKEN": "hf_planted", "WANDB_API_KEY": "planted"}


def config(**publish: Any) -> Config:
    return check_config({"dataset": {"name": "mini", "source": "generated"}, "publish": publish}, "test")


def test_nothing_is_said_while_nothing_leaves_the_machine() -> None:
    assert destinations(config(), EVERY_RULE, {}) == []
    online = config(repository="me/mine", tracking={"mode": "online"})
    assert destinations(online, {"train_run"}, {}) == []


@pytest.mark.parametrize(("public", "seen_by"), [(False, "private"), (True, "public")])
def test_the_place_and_the_missing_key_are_told(public: bool, seen_by: str) -> None:
    given = config(repository="me/mine", public=public, tracking={"mode": "online", "entity": "lab"})
    assert destinations(given, EVERY_RULE, {"HF_TOKEN": ""}) == [
        f"publish: me/mine on the Hub, {seen_by}; HF_TOKEN is not set in this shell",
        "tracking: lab/genselect at Weights & Biases; WANDB_API_KEY is not set in this shell",
    ]


def test_a_key_is_never_shown() -> None:
    told = destinations(config(repository="me/mine", tracking={"mode": "online"}), EVERY_RULE, KEYS)
    assert told == ["publish: me/mine on the Hub, private", "tracking: genselect at Weights & Biases"]
