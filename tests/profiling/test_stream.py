"""Streams of prompts: the numbers of a list, drawn when needed, nothing kept."""

import weakref

import pandas as pd
import pytest

import possym
from possym.errors import InputError
from possym.profiling.stream import profile_stream, summarize_stream

from ..capture import families

PROMPTS = [families.tokens(9 + k % 3, seed=k)[0].tolist() for k in range(11)]
OPTIONS = dict(hold="first", query=-2, progress=False)


def test_a_stream_has_the_numbers_of_a_list():
    model = families.build("llama")
    whole = possym.profile(model, PROMPTS, **OPTIONS)
    parts = list(profile_stream(model, iter(PROMPTS), at_once=4, **OPTIONS))
    assert [len(part.inputs) for part in parts] == [4, 4, 3]
    pd.testing.assert_frame_equal(possym.Profile.concat(parts).heads, whole.heads)
    pd.testing.assert_frame_equal(summarize_stream(iter(parts)), whole.summary(), atol=1e-7)
    one = possym.profile(model, PROMPTS[:1], **OPTIONS)
    pd.testing.assert_frame_equal(summarize_stream([one]), one.summary())


def test_a_stream_is_drawn_as_needed_and_no_profile_is_kept():
    drawn, seen = [], []

    def source():
        for prompt in PROMPTS:
            drawn.append(prompt)
            yield prompt

    def watched(profiles):
        for count, each in enumerate(profiles, 1):
            assert len(drawn) == min(4 * count, 11)
            assert sum(one() is not None for one in seen) <= 1  # the one before this
            seen.append(weakref.ref(each))
            yield each

    stream = profile_stream(families.build("llama"), source(), at_once=4, **OPTIONS)
    assert drawn == []
    summarize_stream(watched(stream))
    assert len(seen) == 3


def test_what_does_not_fit_a_stream_is_refused():
    model = families.build("llama")
    for options, message in [
        (dict(at_once=0), "at_once = 0: give a whole number from 1"),
        (dict(answers=[3]), "answers is for prompts whose number is known"),
        (dict(checkpoint="here"), "checkpoint is for prompts"),
    ]:
        with pytest.raises(InputError, match=message):
            profile_stream(model, iter(PROMPTS), **options)
    for prompts, message in (
        (3, "prompts"),
        ("a b c", "prompts is one str"),
        ({"text": PROMPTS}, "prompts is one dict"),
    ):
        with pytest.raises(InputError, match=message):
            profile_stream(model, prompts)
    with pytest.raises(InputError, match=r"rows of a table: .* \(row\['text'\] for row in rows\)"):
        next(profile_stream(model, ({"text": "a b c"} for _ in range(3))))
    with pytest.raises(InputError, match="give one or more"):
        summarize_stream([])
    two = [possym.profile(each, PROMPTS[:2], progress=False) for each in (model, families.build("llama", seed=1))]
    with pytest.raises(InputError, match="of other models"):
        summarize_stream(two)
