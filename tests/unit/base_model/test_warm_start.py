"""A short warm start: the same every time, sealed, whole or not there, and refused where it would go wrong."""

from __future__ import annotations

import json
import random
import re

import pytest
import torch

from genselect.base_model import play as playing
from genselect.base_model import training, warm_start
from genselect.base_model.calls import EXPLORE, submit_call
from genselect.base_model.folder import RECORD
from genselect.base_model.network import build_network
from genselect.base_model.problems import training_rows
from genselect.base_model.settings import WarmStartSettings
from genselect.base_model.warm_start import FILES, make_base_model
from genselect.errors import GenselectError
from genselect.provenance import check_seal, file_sha256

SHORT = {
    "copy_steps": 2,
    "steps": 4,
    "tokens_per_step": 1000,
    "copy_tokens_per_step": 200,
    "evaluation_problems": 4,
    "threads": 1,
}


def made(folder, **changes):
    return make_base_model(folder, WarmStartSettings(**{**SHORT, **changes}), system="solve")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "model"
    made(folder)
    return folder


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_weights(folder, tmp_path):
    made(tmp_path / "again")
    assert {name: file_sha256(tmp_path / "again" / name) for name in (*FILES, RECORD)} == {
        name: file_sha256(folder / name) for name in (*FILES, RECORD)
    }
    made(tmp_path / "other", seed=2)
    assert file_sha256(tmp_path / "other" / "model.safetensors") != file_sha256(folder / "model.safetensors")


def test_training_moves_the_policys_weights_and_lowers_the_loss(writer, tokenizer, caplog):
    network = build_network(tokenizer, 1)
    before = {name: weight.clone() for name, weight in network.named_parameters()}
    settings = WarmStartSettings(**{**SHORT, "copy_steps": 5, "steps": 25})
    with caplog.at_level("INFO", logger="genselect"):
        training.WarmStart(network, tokenizer, writer, settings).run(training_rows(1, []))
    moved = {name for name, weight in network.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if "visual" not in name}
    losses = [float(found) for found in re.findall(r"loss ([\d.]+) nats", caplog.text)]
    assert losses[-1] < 4.0 < losses[0]
    assert "transcripts, update 25 of 25" in caplog.text


def test_the_loss_counts_what_it_should(tokenizer, writer, rows):
    settings = WarmStartSettings(decision_weight=3, answer_weight=5, repeated_weight=0.5)
    trained = training.WarmStart(build_network(tokenizer, 1), tokenizer, writer, settings)
    transcript = writer.plain(rows[0], 2, random.Random(0))
    short = writer.plain(rows[1], 1, random.Random(0))
    ids, mask, weights = trained._tensors([transcript, short], 0.5)
    assert mask.sum(1).tolist() == [len(transcript.ids), len(short.ids)]
    assert weights[mask == 0].sum() == 0
    policy = torch.tensor(transcript.policy)
    outside = (weights[0] > 0) & ~policy
    assert weights[0][policy].min() == 1
    # Outside the policy's tokens: the answer in the second candidate, lightly, and nothing in the prompt or the first.
    assert [tokenizer.decode([token]) for token in ids[0][outside]] == [rows[0].candidates[1].answer]
    weighed = {
        (tokenizer.decode([token]), weight) for token, weight in zip(ids[0].tolist(), weights[0].tolist(), strict=True)
    }
    assert {("explore", 4.0), ("submit", 4.0), (rows[0].candidates[0].answer, 6.0), ("<tool_call>", 1.0)} <= weighed


def test_the_record_says_what_the_model_can_do(folder):
    record = json.loads((folder / RECORD).read_text())
    assert record["source"] == "made"
    assert record["settings"]["copy_steps"] == 2
    assert record["prompts"] == {"plain": "solve", "careful": "check", "user": "{problem}"}
    for name in ("plain", "careful"):
        assert record["evaluation"][name]["problems"] == 4
        assert 0 <= record["evaluation"][name]["accuracy"] <= record["evaluation"][name]["well_formed"] <= 1
    assert record["evaluation"]["prompt_tokens"] < 45


def test_the_folder_is_whole_and_sealed(folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, RECORD, f"{RECORD}.seal.json"])
    seal = check_seal(folder / RECORD)
    assert {entry.path: entry.sha256 for entry in seal.outputs} == {
        name: file_sha256(folder / name) for name in (*FILES, RECORD)
    }
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_nothing_is_left_when_saving_fails(tmp_path, monkeypatch):
    def fails(network, tokenizer, folder):
        (folder / "config.json").write_text("half")
        raise OSError("the disk went away")

    monkeypatch.setattr(warm_start, "save_model", fails)
    with pytest.raises(OSError, match="went away"):
        made(tmp_path / "model", copy_steps=0, steps=1)
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_model_is_replaced_and_a_strangers_folder_is_not(tmp_path):
    model = tmp_path / "model"
    made(model, copy_steps=0, steps=1)
    first = file_sha256(model / "model.safetensors")
    # Snakemake deletes the outputs it knows before a job; the rest of the folder stays.
    (model / RECORD).unlink()
    made(model, copy_steps=0, steps=1, seed=2)
    assert file_sha256(model / "model.safetensors") != first
    (model / "thesis.tex").write_text("years of work")
    with pytest.raises(GenselectError, match=r"holds other files \(thesis.tex\)"):
        made(model, copy_steps=0, steps=1)
    assert (model / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"careful_share": 1.5}, "careful_share is 1.5"),
        ({"steps": 0}, "steps is 0"),
        ({"copy_steps": -1}, "copy_steps is -1"),
        ({"tokens_per_step": 10}, "tokens_per_step is 10"),
        ({"careful_system": " "}, "careful_system is empty"),
        ({"seed": 10**12}, "seed is 1000000000000"),
        ({"steps": 0, "threads": 0}, "steps is 0.*threads is 0"),
    ],
)
def test_bad_settings_are_refused(changes, words):
    with pytest.raises(GenselectError, match=words):
        WarmStartSettings(**changes)


def test_the_careful_prompt_may_not_be_the_training_prompt(tmp_path):
    with pytest.raises(GenselectError, match="also the careful policy's"):
        make_base_model(tmp_path / "model", WarmStartSettings(**SHORT), system="check")


def test_a_user_message_without_room_for_the_candidates_is_refused(tmp_path):
    with pytest.raises(GenselectError, match=r"takes \d+ tokens, and the miniature plays up to 512"):
        make_base_model(tmp_path / "m", WarmStartSettings(**SHORT), system="solve", user="{problem}" + " think" * 200)


# --- playing ------------------------------------------------------------------------------------------------------------


class Scripted:
    """A "network" that writes a given text in each turn of each row, and checks that it is shown the true tokens."""

    def __init__(self, tokenizer, turns):
        self.tokenizer = tokenizer
        self.scripts = [
            [tokenizer.encode(turn + "<|im_end|>", add_special_tokens=False) for turn in row] for row in turns
        ]
        self.seen = [[] for _ in turns]

    def __call__(self, *, input_ids, attention_mask, position_ids, past_key_values, **options):
        logits = torch.full((len(self.scripts), 1, len(self.tokenizer)), -1e9)
        for row, script in enumerate(self.scripts):
            new = attention_mask[row, -input_ids.shape[1] :].bool()
            self.seen[row] += input_ids[row][new].tolist()
            assert position_ids[row, -1] == len(self.seen[row]) - 1
            logits[row, 0, self._next(row, script)] = 0.0
        return type("Output", (), {"logits": logits, "past_key_values": None})

    def _next(self, row, script):
        seen = self.seen[row]
        opening = self.tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
        starts = [at + 3 for at in range(len(seen)) if seen[at : at + 3] == opening]
        turn = script[min(len(starts), len(script)) - 1]
        written = len(seen) - starts[-1]
        return turn[written] if written < len(turn) else 0


def test_playing_goes_through_the_true_episode(tokenizer, writer, rows):
    scripts = [
        [EXPLORE, EXPLORE, submit_call(rows[0].answer)],
        ["nonsense"],
        [EXPLORE] * 10,
        [submit_call("no number")],
        ["x " * 60],
    ]
    network = Scripted(tokenizer, scripts)
    plays = playing.play(network, tokenizer, writer, rows[:5], torch.Generator(), careful=False)
    assert [each.episode.end for each in plays] == ["submit", "no_call", "turns", "submit", "length"]
    assert [each.episode.explores for each in plays] == [2, 0, 10, 0, 0]
    decoded = tokenizer.decode(plays[0].ids)
    assert [candidate.reasoning in decoded for candidate in rows[0].candidates[:3]] == [True, True, False]
    mine = tokenizer.decode([token for token, policy in zip(plays[0].ids, plays[0].policy, strict=True) if policy])
    assert mine == "".join(turn + "<|im_end|>" for turn in scripts[0])
    told = playing.summary(plays)
    assert (told["accuracy"], told["well_formed"], told["explores"]) == (0.2, 0.4, 2.4)
    # What the network read is what the record holds, up to the token it wrote last.
    assert network.seen[0][: len(plays[0].ids) - 1] == plays[0].ids[:-1]


def test_left_padding_and_the_cache_change_nothing(tokenizer, writer, rows):
    network = build_network(tokenizer, 3).eval()
    stepwise = []

    def recording(**inputs):
        output = network(**inputs)
        stepwise.append(output.logits[:, -1])
        return output

    plays = playing.play(recording, tokenizer, writer, rows[:6], torch.Generator().manual_seed(1), careful=False)
    prompts = [len(each.ids) - sum(each.policy) for each in plays]
    assert len(set(prompts)) > 1
    for row, (each, prompt) in enumerate(zip(plays, prompts, strict=True)):
        with torch.no_grad():
            whole = network(input_ids=torch.tensor([each.ids])).logits[0, prompt - 1 : -1]
        played = torch.stack([logits[row] for logits in stepwise[: len(each.ids) - prompt]])
        assert torch.allclose(played, whole, atol=1e-4)
