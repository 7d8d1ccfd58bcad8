"""The prediction beside what a memory check measured."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


def predicted_peaks(config: Path, cards: int) -> dict[str, float] | None:
    """GiB of the process that computes, by stage: what the check's peaks are to be compared with.

    An estimate must not cost a run anything: whatever goes wrong is logged, and there is none.

    Args:
        config: verl's resolved configuration of the attempt (``attempts/<n>.verl.yaml``).
        cards: That train.
    """
    try:
        from omegaconf import OmegaConf

        from genselect.memory.architecture import read_architecture
        from genselect.memory.predict import GIB, predict
        from genselect.memory.settings import Layout, settings_of

        loaded: Any = OmegaConf.to_container(OmegaConf.load(config), resolve=True)
        architecture = read_architecture(Path(loaded["actor_rollout_ref"]["model"]["path"]))
        prediction = predict(architecture, settings_of(loaded), Layout(cards), card=GIB)
        return {stage.name: stage.process / GIB for stage in prediction.stages if stage.tokens}
    except Exception as error:
        logger.warning("no memory estimate beside the memory check: %s", error)
        return None
