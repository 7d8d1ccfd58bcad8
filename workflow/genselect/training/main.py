"""The process that verl's driver runs in: ``python -m genselect.training.main VERL_CONFIG.yaml``. Started by the launcher."""

from __future__ import annotations

import sys
from pathlib import Path


def main(path: Path) -> None:
    """Train as the resolved verl configuration in ``path`` says."""
    from omegaconf import OmegaConf
    from verl.trainer import main_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = OmegaConf.load(path)
    OmegaConf.set_struct(config, True)
    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )
    main_ppo.run_ppo(config, task_runner_class=main_ppo.TaskRunnerV1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
