"""A published adapter, loaded as others load it, answers as the trained policy did."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from adapter_save import ALPHA, RANK, STEP, AdapterSave, answer, load
from peft import PeftModel
from safetensors.torch import load_file, save_file

from genselect.config import check_config
from genselect.errors import GenselectError
from genselect.plan.runs import resolved_runs
from genselect.publishing.adapters import check_adapters, export
from genselect.training.export_adapter import target_modules
from genselect.training.merge_anchor import merge_anchor

MINI = Path(__file__).resolve().parents[3] / "config" / "mini.yaml"


def config(**changes):
    values = yaml.safe_load(MINI.read_text(encoding="utf-8"))
    return check_config({**values, **changes}, "a test")


def exported(save: AdapterSave, output: Path, step: int = STEP, settings=None) -> Path:
    settings = settings or config()
    runs = resolved_runs(settings)
    export(settings, runs, "formal", step, results=save.results, base=save.base, output=output)
    return output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> AdapterSave:
    return AdapterSave(tmp_path_factory.mktemp("made") / "results")


@pytest.fixture
def incomplete(made: AdapterSave, tmp_path: Path) -> AdapterSave:
    return made.copy(tmp_path / "results")


@pytest.fixture
def save(incomplete: AdapterSave) -> AdapterSave:
    incomplete.complete()
    return incomplete


@pytest.mark.filterwarnings("error:Found missing adapter keys")
def test_peft_loads_it_and_it_answers_as_the_trained_policy(save: AdapterSave, tmp_path: Path) -> None:
    folder = exported(save, tmp_path / "adapter")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    policy = PeftModel.from_pretrained(load(save.base), folder)
    logits = answer(policy)
    assert torch.equal(logits, save.logits)
    assert (logits - answer(load(save.base))).abs().max() > 1
    # What is evaluated is the merged policy: this one, rounded once to the base model's type.
    merge_anchor(save.run, STEP, save.base, tmp_path / "merged", tmp_path / "merged.json")
    merged, ours = load_file(tmp_path / "merged" / "model.safetensors"), policy.merge_and_unload().state_dict()
    assert all(torch.equal(value, ours[name].to(value.dtype)) for name, value in merged.items())


def test_the_same_save_gives_the_same_bytes(save: AdapterSave, tmp_path: Path) -> None:
    one, two = exported(save, tmp_path / "one"), exported(save, tmp_path / "two")
    exported(save, two)  # over an earlier one, too
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes()
    assert str(tmp_path) not in (one / "adapter_config.json").read_text() + (one / "README.md").read_text()


def test_its_settings_name_the_layers_and_nothing_of_the_machine(save: AdapterSave, tmp_path: Path) -> None:
    values = json.loads((exported(save, tmp_path / "adapter") / "adapter_config.json").read_text())
    assert (values["r"], values["lora_alpha"], values["task_type"]) == (RANK, ALPHA, "CAUSAL_LM")
    assert values["base_model_name_or_path"] == "models/mini"
    assert {"q_proj", "in_proj_qkv", "down_proj"} <= set(values["target_modules"])
    # Not in a set's order, which changes from process to process.
    assert values["target_modules"] == sorted(values["target_modules"])
    assert values["inference_mode"] is True


@pytest.mark.filterwarnings("error:Found missing adapter keys")
def test_layers_whose_last_names_others_share_are_named_whole(tmp_path: Path) -> None:
    save = AdapterSave(tmp_path / "results", ["layers.1.self_attn.q_proj", "layers.0.mlp.up_proj"])
    save.complete()
    folder = exported(save, tmp_path / "adapter")
    targets = json.loads((folder / "adapter_config.json").read_text())["target_modules"]
    # Four layers have an MLP, two have attention.
    assert targets == ["model.language_model.layers.0.mlp.up_proj", "model.language_model.layers.1.self_attn.q_proj"]
    assert torch.equal(answer(PeftModel.from_pretrained(load(save.base), folder)), save.logits)
    shapes = {"a.q.weight": (2, 2), "b.q.weight": (2, 2), "c.proj.weight": (2, 2), "patch.proj.weight": (2, 3, 1, 2, 2)}
    assert target_modules(["a.q", "b.q", "c.proj"], shapes) == ["c.proj", "q"]


def test_the_card_is_metadata_the_verdict_and_how_to_load(save: AdapterSave, tmp_path: Path) -> None:
    entry = {
        "arm": "formal@20",
        "against": "untrained",
        "exploratory": False,
        "verdict": {"word": "yes", "sentence": "Yes, it rose above: +20.0 points."},
    }
    other = {**entry, "arm": "majority_8", "verdict": {"word": "no", "sentence": "of somebody else"}}
    comparison = save.results / "evaluation" / "mini" / "comparison.json"
    comparison.parent.mkdir(parents=True)
    comparison.write_text(json.dumps({"hypotheses": [entry, other]}))
    card = (exported(save, tmp_path / "adapter") / "README.md").read_text()
    _, metadata, text = card.split("---\n", 2)
    assert yaml.safe_load(metadata)["library_name"] == "peft"
    assert "base_model" not in yaml.safe_load(metadata)  # the Hub has none of that name
    assert "**formal@20 above untrained?** Yes, it rose above: +20.0 points." in text
    assert "somebody else" not in text
    assert f"rank {RANK}, alpha {ALPHA}" in text
    assert "f" * 64 in text
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code
    compile(code[1], "card", "exec")
    assert "Qwen3_5ForConditionalGeneration.from_pretrained" in code[1]


def test_the_card_of_a_model_of_the_hub_names_commit_and_licence(save: AdapterSave, tmp_path: Path) -> None:
    (save.base / "base_model.json").write_text(
        json.dumps({"repo_id": "Qwen/Qwen3.5-9B", "revision": "c202236" + "0" * 33})
    )
    (save.base / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: en\n---\n# Qwen\n")
    settings = config(models={"base": {"source": "hub"}}, publish={})
    folder = exported(save, tmp_path / "adapter", settings=settings)
    values = json.loads((folder / "adapter_config.json").read_text())
    assert (values["base_model_name_or_path"], values["revision"]) == ("Qwen/Qwen3.5-9B", "c202236" + "0" * 33)
    metadata = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert metadata["license"] == "apache-2.0"
    assert (metadata["base_model"], metadata["base_model_relation"]) == ("Qwen/Qwen3.5-9B", "adapter")


def test_saves_that_cannot_be_published_are_refused_with_those_that_can(
    incomplete: AdapterSave, tmp_path: Path
) -> None:
    save = incomplete
    output = tmp_path / "adapter"
    with pytest.raises(GenselectError, match="it is incomplete"):
        exported(save, output)
    save.complete()
    with pytest.raises(GenselectError, match="there is no such save") as caught:
        exported(save, output, step=7)
    assert "Saved steps there: 20" in caught.value.hint
    save.saves.mark_broken(STEP, "no call at all")
    with pytest.raises(GenselectError, match="it is broken: no call at all"):
        exported(save, output)
    assert not output.exists()


def test_another_base_model_is_refused(save: AdapterSave, tmp_path: Path) -> None:
    weights = load_file(save.base / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, save.base / "model.safetensors")
    with pytest.raises(GenselectError, match="trained on other base weights"):
        exported(save, tmp_path / "adapter")


def test_a_plan_names_steps_that_are_kept() -> None:
    settings = config(publish={"adapters": [{"run": "formal", "step": 20}]})
    check_adapters(settings, resolved_runs(settings))
    settings = config(publish={"adapters": [{"run": "formal", "step": 20}, {"run": "formal", "step": 15}]})
    with pytest.raises(
        GenselectError, match=r"publish.adapters\[1\].step: no save of step 15 of formal is kept"
    ) as caught:
        check_adapters(settings, resolved_runs(settings))
    assert "Kept are steps 10, 20" in caught.value.hint
    settings = config(publish={"adapters": [{"run": "formall", "step": 20}]})
    with pytest.raises(GenselectError, match="there is no run formall"):
        check_adapters(settings, resolved_runs(settings))
