"""What is fixed before the formal run, sealed with its time, and checked against what is compared afterwards."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from genselect.config import fingerprint
from genselect.config.base import json_value
from genselect.errors import GenselectError
from genselect.formats import read_json, write_json
from genselect.provenance import check_seal, seal_path, write_seal

SCHEMA_VERSION = 1
TESTS = ("paired_t", "mcnemar_exact")
#: Set down at the time of writing; comparison settings do not hold them.
_WRITTEN_ONLY = ("schema_version", "written", "minimum_detectable")
#: Additions here are allowed afterwards, and labelled.
EXPLORATORY = "exploratory"


def make_hypothesis(name: str, arm: str, against: str, family: str = "primary") -> dict[str, str]:
    """One hypothesis: ``arm`` is more accurate than ``against``. Holm corrects within ``family``."""
    return {"name": name, "arm": arm, "against": against, "family": family}


def make_settings(
    *,
    hypotheses: Sequence[Mapping[str, str]],
    arms: Sequence[str],
    questions: int,
    population_sha256: str,
    samples: Mapping[str, int],
    seeds: Mapping[str, Any],
    judge_fingerprint: str,
    smallest_effect: float,
    alpha: float = 0.05,
    power: float = 0.8,
    level: float = 0.95,
    test: str = "paired_t",
    primary_metric: str = "accuracy: mean over questions of the share of right answers",
    exploratory_arms: Sequence[str] = (),
    exploratory_hypotheses: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """The settings of a comparison: what is registered before, and what the comparison is checked by after.

    Args:
        hypotheses: Of :func:`make_hypothesis`.
        arms: Names of all arms, baselines included.
        questions: Number of questions.
        population_sha256: Of :func:`genselect.evaluation.questions.population_sha256`.
        samples: Samples a question and seed, by arm; arms not named have one.
        seeds: By use: ``training`` (a list), ``tie_break``, ``bootstrap``, ``draw`` and so on.
        judge_fingerprint: Of the judge of all arms.
        smallest_effect: The smallest rise that would matter, in (0, 1).
        alpha: Of each family, two-sided.
        power: The minimum detectable effect is for.
        level: Of the intervals.
        test: ``paired_t``, or ``mcnemar_exact`` (on one verdict a question and arm).
        primary_metric: In words.
        exploratory_arms: Arms added afterwards; empty before.
        exploratory_hypotheses: Hypotheses added afterwards; empty before.

    Raises:
        GenselectError: A value is out of range, a name stands twice, or a hypothesis names an arm that is not listed.
    """
    named = [*arms, *exploratory_arms]
    everything = [*hypotheses, *exploratory_hypotheses]
    names = [hypothesis["name"] for hypothesis in everything]
    problems = [
        *(f"{name} stands twice" for name in sorted({n for n in [*named, *names] if (named + names).count(n) > 1})),
        *(
            f"hypothesis {hypothesis['name']} names {hypothesis[side]}, which is no arm"
            for hypothesis in everything
            for side in ("arm", "against")
            if hypothesis[side] not in named
        ),
        *(f"samples names {name}, which is no arm" for name in samples if name not in named),
        *(f"{name} is {value}, not between 0 and 1" for name, value in
          (("alpha", alpha), ("power", power), ("level", level), ("smallest_effect", smallest_effect)) if not 0 < value < 1),
    ]  # fmt: skip
    problems += [f"test is {test}, not one of {', '.join(TESTS)}"] if test not in TESTS else []
    problems += [
        f"hypothesis {hypothesis['name']} is of the family {EXPLORATORY}, which is for those added afterwards"
        for hypothesis in hypotheses
        if hypothesis["family"] == EXPLORATORY
    ]
    problems += ["there is no hypothesis"] if not hypotheses else []
    if problems:
        raise GenselectError(f"evaluation: {'; '.join(problems)}", "Mend the evaluation section of the configuration.")
    settings = {
        "hypotheses": [dict(hypothesis) for hypothesis in hypotheses],
        "primary_metric": primary_metric,
        "arms": list(arms),
        "questions": questions,
        "population_sha256": population_sha256,
        "samples": {name: count for name, count in samples.items() if name in arms},
        "test": test,
        "interval": "bca",
        "correction": "holm",
        "alpha": alpha,
        "power": power,
        "level": level,
        "smallest_effect": smallest_effect,
        "seeds": dict(seeds),
        "judge_fingerprint": judge_fingerprint,
        EXPLORATORY: {
            "arms": list(exploratory_arms),
            "hypotheses": [dict(hypothesis) for hypothesis in exploratory_hypotheses],
            "samples": {name: count for name, count in samples.items() if name in exploratory_arms},
        },
    }
    return dict(json_value(settings))


def preregister(
    path: Path | str,
    settings: Mapping[str, Any],
    minimum_detectable: Mapping[str, Mapping[str, Any]],
    inputs: Iterable[Path | str] = (),
) -> dict[str, Any]:
    """Write ``preregistration.json`` and its seal. One that stands there with the same content is left, with its time.

    Args:
        path: The file.
        settings: Of :func:`make_settings`, without exploratory additions.
        minimum_detectable: By hypothesis, of :func:`genselect.evaluation.power.plan_effect`.
        inputs: Files that it was made from, for the seal.

    Returns:
        What the file holds: ``settings``, ``schema_version``, ``written`` (UTC) and ``minimum_detectable``.

    Raises:
        GenselectError: Another preregistration stands there, or a hypothesis has no minimum detectable effect.
    """
    path, started = Path(path), datetime.datetime.now(datetime.UTC)
    missing = sorted({entry["name"] for entry in settings["hypotheses"]} ^ set(minimum_detectable))
    if missing or any(settings[EXPLORATORY].values()):
        raise GenselectError(
            f"{path}: {'no minimum detectable effect, or no hypothesis: ' + ', '.join(missing) if missing else 'exploratory additions'}",
            "A preregistration holds every hypothesis with the effect it can see, and nothing exploratory.",
        )
    written = {
        "schema_version": SCHEMA_VERSION,
        "written": started.isoformat(timespec="seconds"),
        **settings,
        "minimum_detectable": {name: dict(values) for name, values in minimum_detectable.items()},
    }
    if path.exists():
        standing = read_preregistration(path)
        changed = _differences({**standing, "written": ""}, {**written, "written": ""})
        if changed:
            raise _refusal(path.name, changed, "Another preregistration stands there, written " + standing["written"])
        return standing
    write_json(path, written)
    write_seal(
        path,
        kind="preregistration",
        counts={
            "hypotheses": len(written["hypotheses"]),
            "arms": len(written["arms"]),
            "questions": written["questions"],
        },
        outputs=[path],
        inputs=inputs,
        started=started,
        fingerprints={"preregistration": fingerprint(written), "judge": written["judge_fingerprint"]},
    )
    return written


def read_preregistration(path: Path | str) -> dict[str, Any]:
    """A sealed preregistration.

    Raises:
        GenselectError: There is none, it has no seal, or it was edited after it was sealed.
    """
    path = Path(path)
    values = read_json(path)
    hint = f"Put back the file that {seal_path(path).name} sealed; or preregister again and run the formal run anew."
    try:
        seal = check_seal(path)
    except GenselectError as error:
        raise GenselectError(f"{path}: edited after it was sealed: {error.message}", hint) from None
    if seal is None or seal.kind != "preregistration" or seal.output(path.name) is None:
        raise GenselectError(f"{path}: has no seal of a preregistration", hint)
    if seal.fingerprints.get("preregistration") != fingerprint(values):
        raise GenselectError(f"{path}: edited after it was sealed: seal and content have different fingerprints", hint)
    return values


def check(preregistration: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse a comparison whose settings are not the preregistered ones. What ``exploratory`` lists may be added.

    Raises:
        GenselectError: A setting differs; every key is named, old -> new.
    """
    fixed = {key: value for key, value in preregistration.items() if key not in (*_WRITTEN_ONLY, EXPLORATORY)}
    changed = _differences(fixed, {key: value for key, value in settings.items() if key != EXPLORATORY})
    if changed:
        raise _refusal("the comparison", changed, "Its settings are not those preregistered")


def _differences(old: Any, new: Any, key: str = "") -> list[str]:
    """``key: old -> new`` of each leaf that differs. Lists of named things are compared by name, other lists whole."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = []
        for name in [*old, *(name for name in new if name not in old)]:
            inner = f"{key}.{name}" if key else str(name)
            found += _differences(old.get(name, _ABSENT), new.get(name, _ABSENT), inner)
        return found
    named_old, named_new = _by_name(old), _by_name(new)
    if named_old is not None and named_new is not None:
        return _differences(named_old, named_new, key)
    return [] if old == new else [f"{key}: {_show(old)} -> {_show(new)}"]


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


_ABSENT = _Absent()


def _by_name(value: Any) -> dict[str, Any] | None:
    """A list of arms or hypotheses by name, so that an added one is one difference."""
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(entry, str) for entry in value):
        return dict.fromkeys(value, "listed")
    if all(isinstance(entry, Mapping) and "name" in entry for entry in value):
        return {entry["name"]: entry for entry in value}
    return None


def _show(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _refusal(what: str, changed: Sequence[str], why: str) -> GenselectError:
    lines = "\n".join(f"  - {line}" for line in changed)
    return GenselectError(
        f"{what} is refused. {why}; {len(changed)} key(s) differ, preregistered -> now:\n{lines}",
        "Restore the setting(s). An arm or hypothesis that was added belongs under exploratory; anything else needs a new "
        "preregistration and a new formal run.",
    )
