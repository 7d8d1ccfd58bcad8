"""Rollouts and overfit sets as the plan sees them: names that exist, draws that can fill a set, nothing that waits for itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from genselect.config import Config
from genselect.config.rollout import Draws, OverfitSet, Rollout
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.plan.runs import gates
from genselect.provenance.difference import did_you_mean

#: ``runs.<name>.data`` of a run on all built rows.
ALL = "all"


def rollout_identity(rollout: Rollout, run: Run) -> dict[str, Any]:
    """What decides a rollout besides its rows and its model: its own settings, and how ``run`` plays an episode.

    The run's schedule and optimiser are no part of it.
    """
    own = rollout.identity()
    del own["like"]  # a name; what it stands for follows
    tokens = run.tokens
    return {
        **own,
        "tokens": {"prompt": tokens.prompt, "response": tokens.response, "turn": tokens.turn},
        "reward": run.reward.identity(),
        "max_turns": run.max_turns,
        "temperature": run.temperature,
    }


def check_selections(config: Config, runs: Mapping[str, Run]) -> None:
    """Check rollouts, overfit sets and the runs' ``data`` against each other.

    Args:
        config: The configuration.
        runs: Resolved.

    Raises:
        GenselectError: A name is unknown, draws cannot fill a set, or a run or a set waits for itself.
    """
    for name, rollout in config.rollouts.items():
        _known(rollout.like, runs, f"rollouts.{name}.like", "run")
    for name, chosen in config.overfit_sets.items():
        _check_set(name, chosen, config, runs)
    for name, run in runs.items():
        if run.data != ALL:
            _known(run.data, config.overfit_sets, f"runs.{name}.data", "overfit set", [ALL])
            rows = len(config.overfit_sets[run.data].bands) * config.overfit_sets[run.data].per_band
            if run.schedule.problems > rows:
                raise GenselectError(
                    f"runs.{name}.schedule.problems: a step takes {run.schedule.problems} problems, and {run.data} has {rows} rows",
                    f"Set it to {rows} or less, or raise overfit_sets.{run.data}.per_band.",
                )
    _check_order(config, runs)


def _check_set(name: str, chosen: OverfitSet, config: Config, runs: Mapping[str, Run]) -> None:
    where = f"overfit_sets.{name}"
    if name == ALL:
        raise GenselectError(f"{where}: that name means all built rows", "Give the set another name.")
    if len(set(chosen.bands)) < len(chosen.bands) or not set(chosen.bands) <= set(range(chosen.samples + 1)):
        raise GenselectError(
            f"{where}.bands: {chosen.bands} with samples of {chosen.samples}",
            f"Name distinct pass counts from 0 to {chosen.samples}.",
        )
    _check_draws(f"{where}.draws", chosen.draws, chosen, config, runs)
    if chosen.of is not None and chosen.second_draws is not None:
        _known(chosen.of, config.overfit_sets, f"{where}.of", "overfit set")
        _check_draws(f"{where}.second_draws", chosen.second_draws, chosen, config, runs)
        if strange := sorted(set(chosen.bands) - set(config.overfit_sets[chosen.of].bands)):
            raise GenselectError(
                f"{where}.bands: {chosen.of} has no rows of band {strange[0]}",
                f"Its bands are {config.overfit_sets[chosen.of].bands}; name some of them.",
            )


def _check_draws(where: str, draws: Draws, chosen: OverfitSet, config: Config, runs: Mapping[str, Run]) -> None:
    if draws.rollout is not None:
        _known(draws.rollout, config.rollouts, f"{where}.rollout", "rollout")
        rollout = config.rollouts[draws.rollout]
        if rollout.rows != "train":
            raise GenselectError(
                f"{where}.rollout: {draws.rollout} plays held-out rows, and a set is of training rows",
                f"Set rollouts.{draws.rollout}.rows to train, or name another rollout.",
            )
        key, samples = f"rollouts.{draws.rollout}.samples", rollout.samples
    else:
        assert draws.run is not None  # the model checked it
        _known(draws.run, runs, f"{where}.run", "run")
        schedule = runs[draws.run].schedule
        if late := [step for step in draws.steps or [] if not 1 <= step <= schedule.steps]:
            raise GenselectError(
                f"{where}.steps: {draws.run} has no step {late[0]}", f"Its steps are 1 to {schedule.steps}."
            )
        key, samples = f"runs.{draws.run}.schedule.samples", schedule.samples
    if samples != chosen.samples:
        raise GenselectError(
            f"{where}: {key} is {samples}, and the set counts draws of {chosen.samples} samples",
            f"Set {where.rsplit('.', 1)[0]}.samples to {samples}, or {key} to {chosen.samples}.",
        )


def _check_order(config: Config, runs: Mapping[str, Run]) -> None:
    """Refuse what waits for itself. A formal run waits for every gate, so a gate's set cannot be drawn from a formal run."""
    waits: dict[str, list[str]] = {}
    for name, run in runs.items():
        after = [f"overfit_sets.{run.data}"] if run.data != ALL else []
        after += [f"runs.{run.start.run}"] if run.start.run is not None else []
        after += [f"runs.{gate}" for gate in gates(runs)] if run.kind == "formal" else []
        waits[f"runs.{name}"] = after
    for name, chosen in config.overfit_sets.items():
        after = [f"overfit_sets.{chosen.of}"] if chosen.of is not None else []
        after += [f"runs.{draws.run}" for draws in (chosen.draws, chosen.second_draws) if draws and draws.run]
        waits[f"overfit_sets.{name}"] = after
    if circle := next(_circles(waits), None):
        raise GenselectError(
            f"these wait for each other in a circle: {' -> '.join(circle)}",
            "Draw the set from a rollout, or from a run that does not train on it and that nothing here waits for "
            "(a formal run waits for every gate).",
        )


def _circles(waits: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    settled: set[str] = set()

    def walk(node: str, path: list[str]) -> Iterator[list[str]]:
        if node in path:
            yield [*path[path.index(node) :], node]
        elif node not in settled:
            for following in waits[node]:
                yield from walk(following, [*path, node])
            settled.add(node)

    for start in waits:
        yield from walk(start, [])


def _known(name: str, names: Iterable[str], where: str, what: str, also: Iterable[str] = ()) -> None:
    if name not in names:
        raise GenselectError(f"{where}: there is no {what} {name}", did_you_mean(name, [*names, *also]))
