"""Wrong configurations say what was meant; right ones have stable identities."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from genselect.config import Config, check_config, fingerprint, load_config
from genselect.errors import GenselectError

MINIMAL = {"dataset": {"name": "x"}}


@pytest.mark.parametrize(
    ("values", "what", "hint"),
    [
        ({**MINIMAL, "judges": {}}, "judges: no such key", "Did you mean judge?"),
        (
            {**MINIMAL, "judge": {"cascade": {"symbolc": True}}},
            "judge.cascade.symbolc",
            "Did you mean judge.cascade.symbolic?",
        ),
        (
            {**MINIMAL, "judge": {"concurrency": 3}},
            "judge.concurrency",
            "concurrency belongs at judge.client.concurrency",
        ),
        ({**MINIMAL, "build": {"qqqq": 3}}, "build.qqqq", "Keys of build: benchmark"),
        ({}, "dataset: missing", "Add dataset to the top level"),
        ({"dataset": {"name": "x", "revision": "main"}}, "dataset.revision", "config/README.md"),
        ({"dataset": {"name": "x", "source": "local"}}, "local_dir must name the folder", "config/README.md"),
        ({**MINIMAL, "judge": {"kind": "endpoints"}}, "endpoints must list at least one base URL", "config/README.md"),
        ({**MINIMAL, "build": {"candidates_per_row": "many"}}, "build.candidates_per_row", "got 'many'"),
        (
            {**MINIMAL, "runs": {"m": {"kind": "memory_check"}}},
            "a memory_check needs synthetic_steps",
            "config/README.md",
        ),
        (
            {**MINIMAL, "runs": {"p": {"potential": [{"name": "x", "weight": 1}], "optimiser": {"gamma": 0.9}}}},
            "optimiser.gamma is not 1",
            "config/README.md",
        ),
        (
            {**MINIMAL, "overfit_sets": {"s": {"draws": {"rollout": "a", "run": "b"}}}},
            "name either a rollout or a run",
            "config/README.md",
        ),
        (
            {**MINIMAL, "overfit_sets": {"s": {"draws": {"rollout": "a"}, "of": "t"}}},
            "of and second_draws go together",
            "config/README.md",
        ),
        ({**MINIMAL, "build": {"min_correct": 9}}, "min_correct <= max_correct", "config/README.md"),
        ({**MINIMAL, "build": {"filters": {"answer_pattern": "("}}}, "not a regular expression", "config/README.md"),
        ({**MINIMAL, "prompt": {"user": "no field"}}, "user must hold {problem}", "config/README.md"),
        (
            {**MINIMAL, "judge": {"sampling": {"first_max_tokens": 9, "second_max_tokens": 9}}},
            "second_max_tokens must be larger",
            "",
        ),
        (
            {**MINIMAL, "publish": {"base_model": True}},
            "publish.base_model is true, and models.base.source is hub",
            "",
        ),
        ([], "empty or not a mapping", "config/mini.yaml"),
    ],
)
def test_a_wrong_configuration_says_what_was_meant(values: object, what: str, hint: str) -> None:
    with pytest.raises(GenselectError) as caught:
        check_config(values, "my.yaml")
    text = str(caught.value)
    assert text.startswith("my.yaml: ")
    assert what in text
    assert "\nHint: " in text
    assert hint in text


def test_all_faults_are_listed_at_once() -> None:
    with pytest.raises(GenselectError, match="2 fault") as caught:
        check_config({"dataset": {"name": "X"}, "bild": {}}, "my.yaml")
    assert "dataset.name" in str(caught.value)
    assert "Did you mean build?" in str(caught.value)


@pytest.mark.parametrize(("text", "what"), [("a: [", "not YAML"), (None, "there is no such configuration file")])
def test_an_unreadable_file_is_named(tmp_path: Path, text: str | None, what: str) -> None:
    path = tmp_path / "broken.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(GenselectError, match=what) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["config.yaml", "mini.yaml", "study.yaml"])
def test_shipped_configurations_fit_models_and_schema(repository: Path, name: str) -> None:
    path = repository / "config" / name
    load_config(path)
    jsonschema.validate(
        yaml.safe_load(path.read_text()), json.loads((repository / "config" / "schema.json").read_text())
    )


def test_runtime_keys_do_not_change_the_identity_and_result_keys_do() -> None:
    def identity(judge: dict) -> str:
        return fingerprint(check_config({**MINIMAL, "judge": judge}, "x").judge.identity())

    plain = identity({})
    assert (
        identity(
            {"client": {"concurrency": 3}, "endpoints": ["http://127.0.0.1:1/v1"], "shards": 9, "server": {"port": 9}}
        )
        == plain
    )
    assert identity({"sampling": {"temperature": 0.5}}) != plain
    assert identity({"cascade": {"symbolic": False}}) != plain
    assert identity({"server": {"args": ["--quantization", "fp8"]}}) != plain


def test_the_full_resolved_configuration_reads_back_the_same(tmp_path: Path, repository: Path) -> None:
    from genselect.plan.inputs import write_resolved_config

    config = load_config(repository / "config" / "mini.yaml")
    write_resolved_config(config, tmp_path / "resolved.yaml")
    assert load_config(tmp_path / "resolved.yaml") == config
    before = (tmp_path / "resolved.yaml").stat().st_mtime_ns
    write_resolved_config(config, tmp_path / "resolved.yaml")
    assert (tmp_path / "resolved.yaml").stat().st_mtime_ns == before


def test_generated_documentation_is_in_step_with_the_models(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=repository, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_every_key_is_documented() -> None:
    schema = Config.model_json_schema()
    sections = [schema, *schema["$defs"].values()]
    bare = [
        f"{s['title']}.{name}"
        for s in sections
        for name, field in s["properties"].items()
        if not field.get("description")
    ]
    assert bare == []


def test_the_configuration_loads_without_the_heavy_packages() -> None:
    code = (
        "import sys, genselect.config, genselect.formats, genselect.provenance, genselect.plan.inputs; "
        "print([m for m in ('torch', 'ray', 'verl', 'vllm', 'sympy', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
