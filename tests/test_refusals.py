"""What users' doors refuse: each says what was given, what was expected and what to do."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import possym
from possym import ConfigError, InputError, UnsupportedModelError, claims, results, rope, scores
from possym.capture import Capture
from possym.experiments import theory
from possym.models import endpoint, hub
from possym.monitor import HeadScoreCallback
from possym.results.published import published
from possym.tasks import IndexTask, LetterTask, NumberTask

MODEL = LlamaForCausalLM(
    LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
).eval()
SQUARE, QUERY, KEYS = torch.zeros(4, 4), torch.ones(4), torch.ones(5, 4)
BLOCKS = [(0, 2), (1, 3)]


def relocate(query=QUERY, positions=torch.arange(5), layout="half"):  # noqa: B008
    options = dict(query_position=5, frequencies=torch.ones(2))
    return scores.relocated_logits(query, KEYS, positions=positions, layout=layout, **options)


DOORS = {
    "profile": [
        (lambda: possym.profile("gpt2", [[1, 2, 3]]), "model is a str: give a transformers model"),
        (lambda: possym.profile(MODEL, []), "prompts: give one or more strings, chats, or sequences of token ids"),
        (lambda: possym.profile(MODEL, [[1, 2, 3], [1, 2, 99]]), "prompt 1 holds token id 99: .* from 0 to 63"),
        (lambda: possym.profile(MODEL, ["a b"]), "prompt 0 is text: give tokenizer, or token ids"),
        (lambda: possym.profile(MODEL, ["a b"], tokenizer=3), "tokenizer is a int"),
        (lambda: possym.profile(MODEL, [[1, 2, 3]], temperature=0), "temperature = 0: give a number between"),
        (lambda: possym.profile(MODEL, [[1, 2, 3, 4]], blocks=BLOCKS), r"block \(1, 3\): .* not overlapping"),
        (lambda: possym.Profile.load(3), r"path is of type int \(3\): give a str or os.PathLike"),
    ],
    "capture": [
        (lambda: Capture("gpt2"), "model is a str: give a transformers model"),
        (lambda: Capture(MODEL).run([[1, 2]], print), r"tokens: got list, expected whole numbers of shape \(T,\)"),
    ],
    "monitor": [
        (lambda: HeadScoreCallback([]), "prompts: give one or more"),
        (lambda: HeadScoreCallback([[1, 2, 3]], steps="all"), "steps is of type str"),
        (lambda: HeadScoreCallback([[1, 2, 3]], steps=range(2**63)), r"steps = range\(0, 9.*: give at most 16,777,216"),
    ],
    "relocated logits": [
        (lambda: relocate(torch.ones(3)), r"query \(3,\) and keys \(5, 4\): expected \(..., D\) and \(..., T, D\)"),
        (lambda: relocate(layout="halves"), "layout = 'halves': known layouts are interleaved, half"),
        (lambda: relocate(positions=torch.arange(4)), r"positions \(4,\): expected \(5,\), one for each key"),
        (lambda: rope.planes("x", torch.ones(1), "half"), "x is of type str"),
    ],
    "swap scores": [
        (lambda: scores.swap_scores(torch.ones(4, 3)), r"relocated \(4, 3\): expected \(..., T, T\)"),
        (lambda: scores.swap_scores([[1]]), "relocated is of type list"),
        (lambda: scores.swap_scores(SQUARE, temperature=0.0), "temperature = 0.0: give a positive number"),
        (lambda: scores.swap_scores(SQUARE, blocks=[(0, 2)]), "a swap needs at least two blocks"),
    ],
    "a task's sample": [
        (lambda: NumberTask().sample(2**63), "n = 9223372036854775808: give a whole number"),
        (lambda: LetterTask().sample(4, hops=9), "hops = 9: give a whole number from 1 to 4"),
        (lambda: IndexTask().sample(4, length=1), "length = 1: give a whole number from 2 to 128"),
        (lambda: NumberTask().sample(4, generator=3), "generator = 3: give a torch.Generator"),
    ],
    "load or run": [
        (lambda: results.load_or_run(theory, {}), "config is a dict: give the study's Config"),
        (lambda: results.load_or_run(theory, theory.Config(), "never"), "known values are stored, auto, always"),
        (lambda: published("P2.table9"), "published value 'P2.table9': not in the data file, known are"),
    ],
    "models": [
        (lambda: hub.load("no/such/place"), "neither a folder, a .gguf file nor a hub id"),
        (lambda: hub.load(device=["cpu"]), "device is of type list"),
        (lambda: endpoint.ask("http://localhost", ["?"], "answers.jsonl"), "endpoint is of type str"),
    ],
    "ledger": [
        (lambda: claims.ledger("99"), "chapter = '99': chapters with claims are 01-"),
        (lambda: claims.finding("x"), "claim 'x': known claims are"),
        (lambda: claims.what_holds("04-rope-geometry", {"theory": 3}), "studies.* is of type int"),
    ],
}
CASES = [(f"{door} {number}", *case) for door, cases in DOORS.items() for number, case in enumerate(cases)]


@pytest.mark.parametrize("call, message", [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_door_says_what_is_wrong_and_what_to_give(call, message):
    with pytest.raises((InputError, ConfigError, UnsupportedModelError), match=message):
        call()
