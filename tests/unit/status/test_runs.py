"""Runs and gates: a status tells what a person would find out with an hour's reading."""

from __future__ import annotations

import shutil

import pytest
from status_folder import Results, four_steps, run_of, shown, stage_of, words

from genselect.formats import write_json
from genselect.status import collect
from genselect.status.model import State

# A run that is running


def test_a_running_run_says_how_far_it_is_and_when_it_will_end(results: Results) -> None:
    results.built()
    formal = four_steps(results)
    formal.step(5, 10.0)
    formal.age(3.0)
    run = run_of(results.status())
    assert (run.state, run.step, run.steps, run.attempts) == (State.RUNNING, 5, 12, 1)
    assert run.lock is not None
    assert run.lock.held is True
    # Five steps took 50 s and a validation of 4 s; seven are to come, and 3 s of the next are over.
    assert run.step_s == pytest.approx(10.8)
    assert run.eta_s == pytest.approx(7 * 10.8 - 3.0)
    assert run.seen_s == pytest.approx(3.0)
    assert run.figures is not None
    assert (run.figures.step, run.figures.verdict, run.figures.explores, run.figures.kl) == (5, 0.5, 3.25, 0.002)
    assert run.held_out is not None
    assert (run.held_out.step, run.held_out.verdict, run.held_out.rows) == (4, 0.625, 24)
    assert run.health is not None
    assert (run.health.level, run.health.finding) == ("healthy", None)
    assert (run.saves.last_complete, run.saves.anchors) == (4, [4])


def test_a_long_step_does_not_make_a_run_end_before_its_steps_are_done(results: Results) -> None:
    formal = four_steps(results)
    formal.age(3000.0)
    # 8 steps of 11 s are to come, and at most the one under way can be over.
    assert run_of(results.status()).eta_s == pytest.approx(7 * 11.0)


def test_the_expected_size_counts_the_saves_that_are_kept(results: Results) -> None:
    formal = four_steps(results)
    part = next(part for part in results.status().disk.parts if part.part == "runs/formal")
    save = sum(path.stat().st_size for path in (formal.path / "checkpoints/global_step_4").rglob("*") if path.is_file())
    tracker = (formal.path / "checkpoints/latest_checkpointed_iteration.txt").stat().st_size
    assert save > 1000
    assert part.checkpoints == save + tracker
    # Anchors 4, 8, 12, and 12 is the latest, too; what grows has done 4 of 12 steps.
    assert part.expected == 3 * save + tracker + (part.records + part.rest) * 3
    status = results.status().disk
    assert status.used == sum(path.lstat().st_size for path in results.root.rglob("*") if path.is_file())
    assert status.expected == status.used - part.bytes + part.expected


# Runs that are not


def test_a_killed_run_is_told_from_a_running_one(results: Results) -> None:
    formal = four_steps(results)
    formal.step(5)
    formal.die()
    formal.age(2.0)
    status = results.status()
    run = run_of(status)
    assert (run.state, run.eta_s) == (State.KILLED, None)
    assert "formal: attempt 1 was killed: its process is gone; the same command goes on behind step 4" in words(
        shown(status)
    )


def test_a_lock_that_this_process_holds_on_another_file_is_not_this_run(results: Results) -> None:
    """A copy on the same machine names a pid that lives, and nobody works in the copy."""
    formal = four_steps(results)
    shutil.copytree(results.root, results.root.with_name("copied"))
    assert run_of(results.status()).state is State.RUNNING
    assert run_of(collect(results.root.with_name("copied"))).state is State.KILLED
    formal.die()


def test_a_run_stopped_by_a_guard_names_guard_and_anchor(results: Results) -> None:
    formal = four_steps(results)
    for step in (5, 6, 7):
        formal.step(step)
    formal.step(8, **{"actor__ppo_kl_max": 1.5})
    formal.end("guard", 3)
    status = results.status()
    run = run_of(status)
    assert run.state is State.GUARD
    assert run.last_attempt is not None
    assert run.last_attempt.reason == "guard"
    assert run.health is not None
    assert (run.health.level, run.health.guard, run.health.last_healthy_anchor) == ("stop", "kl_jump", 6)
    assert run.health.finding == "actor/ppo_kl 1.5 is, in magnitude, over 1"
    assert (run.saves.last_complete, run.saves.broken) == (6, [8])
    text = words(shown(status))
    assert "formal: stopped by a guard; last healthy anchor: step 6" in text
    assert "formal: stop at step 8: actor/ppo_kl 1.5 is, in magnitude, over 1 (kl_jump)" in text


def test_health_of_the_last_step_does_not_hide_an_earlier_alarm(results: Results) -> None:
    formal = four_steps(results)
    formal.step(5, **{"actor__ppo_kl_max": 0.2})
    formal.step(6)
    run = run_of(results.status())
    assert run.health is not None
    assert (run.health.level, run.health.worst_level) == ("healthy", "alarm")
    assert "healthy (was alarm)" in words(shown(results.status(), 140))


def test_a_run_that_was_asked_to_stop_can_go_on(results: Results) -> None:
    formal = four_steps(results)
    formal.end("signal", 75)
    status = results.status()
    assert run_of(status).state is State.STOPPED
    assert "formal: attempt 1 ended (signal); the same command goes on behind step 4" in words(shown(status))


def test_a_done_run_stays_done_whatever_its_lock_says(results: Results) -> None:
    smoke = results.run("smoke")
    smoke.step(1)
    smoke.end("done")
    run = run_of(results.status(), "smoke")
    assert (run.state, run.step, run.seen_s) == (State.DONE, 1, None)


def test_a_run_that_was_refused_before_its_first_attempt_has_failed(results: Results) -> None:
    results.built()
    results.log(
        "train_run/smoke.log", "2026-11-29 11:59:00,000 ERROR error: smoke: was used with other settings", "Hint: x"
    )
    status = results.status()
    assert run_of(status, "smoke").state is State.FAILED
    assert "smoke: failed: smoke: was used with other settings" in words(shown(status))


# What waits


def test_a_run_waits_for_gates_start_model_and_rows(results: Results) -> None:
    status = results.status()
    assert run_of(status).waits_for == ["gate smoke", "preregistration", "model", "rows"]
    results.built()
    smoke = results.run("smoke")
    smoke.step(1)
    smoke.end("done")
    status = results.status()
    formal = run_of(status)
    assert (formal.state, formal.waits_for) == (State.WAITING, ["gate smoke", "preregistration"])
    assert run_of(status, "second").waits_for == ["run formal", "gate smoke", "preregistration"]
    assert "formal: waits for gate smoke, preregistration" in words(shown(status))
    results.gate("smoke")
    assert run_of(results.status()).waits_for == ["preregistration"]
    write_json(results.root / "evaluation" / "mini" / "preregistration.json", {})
    assert run_of(results.status()).state is State.ABSENT


def test_a_run_on_an_overfit_set_waits_for_the_set_and_the_set_for_the_rollout(results: Results) -> None:
    runs = {**results.config.model_dump(exclude_unset=True)["runs"], "control": {"kind": "overfit", "data": "control"}}
    runs["control"]["schedule"] = {"problems": 4, "samples": 4}
    results.configure(runs=runs)
    results.built()
    status = results.status()
    assert run_of(status, "control").waits_for == ["overfit set control"]
    assert stage_of(status, "overfit set", "control").waits_for == ["rollout untrained"]
    results.rolled_out()
    status = results.status()
    assert run_of(status, "control").state is State.ABSENT
    assert stage_of(status, "overfit set", "control").state is State.DONE


# Gates


def test_gates_pass_fail_and_are_waived_with_their_reason(results: Results) -> None:
    results.built()
    assert stage_of(results.status(), "gate", "smoke").waits_for == ["run smoke"]
    smoke = results.run("smoke")
    smoke.step(1, **{"actor__ppo_kl": 0.07})
    smoke.end("done")
    assert stage_of(results.status(), "gate", "smoke").state is State.ABSENT
    results.log(
        "check_gate/smoke.log",
        "2026-11-29 11:59:00,000 ERROR error: gate smoke fails:",
        "  - actor/ppo_kl < 0.05: actor/ppo_kl is 0.07",
        "Hint: Mend it.",
    )
    failed = results.status()
    assert stage_of(failed, "gate", "smoke").state is State.FAILED
    assert "gate smoke fails: - actor/ppo_kl < 0.05: actor/ppo_kl is 0.07" in stage_of(failed, "gate", "smoke").note
    assert "gate smoke" in run_of(failed).waits_for
    assert "gate smoke: failed: gate smoke fails: - actor/ppo_kl < 0.05: actor/ppo_kl is 0.07" in words(shown(failed))
    results.gate("smoke", {"smoke": "the miniature is noisy"})
    waived = results.status()
    gate = stage_of(waived, "gate", "smoke")
    assert (gate.state, waived.totals.gates_waived, waived.totals.gates_passed) == (State.WAIVED, 1, 0)
    assert gate.note == "the miniature is noisy (fails actor/ppo_kl < 0.05)"
    assert "gates 1 of 1 (1 waived)" in words(shown(waived))
    assert "gate smoke: waived: the miniature is noisy (fails actor/ppo_kl < 0.05)" in words(shown(waived))
    assert "gate smoke" not in run_of(waived).waits_for


def test_a_gate_that_passes_says_so(results: Results) -> None:
    smoke = results.run("smoke")
    smoke.step(1)
    smoke.end("done")
    results.gate("smoke", {"smoke": "may fail, and does not"})
    assert stage_of(results.status(), "gate", "smoke").state is State.PASSED
