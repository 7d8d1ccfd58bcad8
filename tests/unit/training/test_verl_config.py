"""A run becomes verl's configuration; verl's own schema refuses what it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.training.verl_config import Launch, verl_config


def launch(cpu: bool = True, resume: str | None = None) -> Launch:
    return Launch(
        name="r",
        model=Path("model"),
        train_rows=Path("train.parquet"),
        val_rows=Path("val.parquet"),
        directory=Path("runs/r"),
        attempt=1,
        resume_from=Path(resume) if resume else None,
        agent_loop=Path("loop.yaml"),
        total_steps=7,
        cpu=cpu,
    )


def test_the_settings_of_a_run_arrive_under_verls_names() -> None:
    run = Run.model_validate(
        {
            "schedule": {"problems": 32, "samples": 4, "mini_batch": 8, "epochs": 2},
            "optimiser": {"actor_lr": 5e-5, "critic_lr": 2e-4, "lora_rank": 64, "lam": 0.95},
            "seed": 9,
        }
    )
    config = verl_config(run, launch(cpu=False), {"attempt": 1})
    assert config.algorithm.adv_estimator == "gae"
    assert config.algorithm.lam == 0.95
    assert config.data.train_batch_size == 32
    assert config.actor_rollout_ref.rollout.n == 4
    assert config.actor_rollout_ref.actor.ppo_epochs == 2
    assert config.actor_rollout_ref.actor.optim.lr == 5e-5
    assert config.critic.optim.lr == 2e-4
    assert config.actor_rollout_ref.model.lora_rank == config.critic.model.lora_rank == 64
    assert config.trainer.n_gpus_per_node == 8
    assert config.data.seed == config.actor_rollout_ref.actor.data_loader_seed == 9
    assert config.genselect.attempt == 1


def test_the_policys_rate_is_constant_unless_it_is_to_fall() -> None:
    for chosen, name, lowest in (({}, "constant", 0.0), ({"actor_lr_schedule": "cosine"}, "cosine", 0.1)):
        run = Run.model_validate({"optimiser": chosen})
        optim = verl_config(run, launch(cpu=False), {}).actor_rollout_ref.actor.optim
        assert (optim.lr_scheduler_type, optim.min_lr_ratio) == (name, lowest)


def test_grpo_and_other_estimators_pass_through() -> None:
    assert verl_config(Run(algorithm="grpo"), launch(), {}).algorithm.adv_estimator == "grpo"


def test_a_resume_always_names_its_save() -> None:
    # `auto` starts from scratch in silence when verl's tracker file is missing.
    fresh = verl_config(Run(), launch(), {}).trainer
    assert fresh.resume_mode == "disable"
    resumed = verl_config(Run(), launch(resume="runs/r/checkpoints/global_step_5"), {}).trainer
    assert (resumed.resume_mode, resumed.resume_from_path) == ("resume_path", "runs/r/checkpoints/global_step_5")


def test_nothing_of_the_cpu_reaches_a_node_with_cards() -> None:
    config = verl_config(Run(), launch(cpu=False), {})
    assert config.trainer.device == "cuda"
    assert config.actor_rollout_ref.model.fused_kernel_options.impl_backend == "torch"
    assert config.actor_rollout_ref.actor.use_dynamic_bsz is True


def test_users_keys_win_and_unknown_ones_are_refused() -> None:
    run = Run(verl={"actor_rollout_ref.actor.clip_ratio": 0.3, "+trainer.my_key": 1})
    config = verl_config(run, launch(), {})
    assert config.actor_rollout_ref.actor.clip_ratio == 0.3
    assert config.trainer.my_key == 1
    with pytest.raises(GenselectError, match="verl has no such key") as caught:
        verl_config(Run(verl={"actor_rollout_ref.actor.clip_ration": 0.3}), launch(), {})
    assert "Did you mean actor_rollout_ref.actor.clip_ratio?" in str(caught.value)


def test_users_keys_count_in_the_fingerprint() -> None:
    from genselect.config import fingerprint
    from genselect.plan.runs import identity

    assert fingerprint(identity(Run())) != fingerprint(identity(Run(verl={"actor_rollout_ref.actor.clip_ratio": 0.3})))


@pytest.mark.parametrize("key", ["algorithm.use_kl_in_reward", "algorithm.rollout_correction.rollout_is"])
def test_a_potential_refuses_what_its_advantages_would_leave_out(key: str) -> None:
    value = True if key.endswith("reward") else "token"
    shaped = Run.model_validate({"potential": [{"name": "leading_share", "weight": 0.1}], "verl": {key: value}})
    with pytest.raises(GenselectError, match=f"verl.{key}: does not go together with a potential"):
        verl_config(shaped, launch(), {})
    verl_config(Run.model_validate({"verl": {key: value}}), launch(), {})
