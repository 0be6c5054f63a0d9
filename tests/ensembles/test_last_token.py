"""What the last place sees: against transformers' attention, and against moving keys for real."""

import pytest
import torch

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.last_token import attention, last_token_logits, plane_table, swapped_attention
from possym.scores import swap_scores

from .. import permutation


@pytest.fixture(scope="module")
def model():
    made = GPTJEnsemble(GPTJConfig(vocabulary_size=40, layers=2, width=16, heads=2, init_std=0.7), seeds=[0, 1])
    return made


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(40, (3, 7), generator=torch.Generator().manual_seed(0))


def test_attention_is_that_of_transformers(model, tokens):
    ours = attention(*last_token_logits(model, tokens))
    for member in range(2):
        theirs = model.member_to_transformers(member)
        theirs.set_attn_implementation("eager")
        with torch.no_grad():
            seen = theirs(tokens, output_attentions=True).attentions
        expected = torch.stack([layer[:, :, -1] for layer in seen])
        torch.testing.assert_close(ours[member], expected, atol=1e-5, rtol=0)


def contents(model, tokens, row, layer, head):
    queries, keys, _ = model.trace(tokens)
    return queries[1, layer, row, head].detach().double(), keys[1, layer, row, head].detach().double()


@pytest.mark.parametrize(("first", "second"), [(0, 1), (0, 5), (4, 2)])
def test_swapped_attention_is_that_of_moved_keys(model, tokens, first, second):
    relocated, own = (values[1, 1, 2, 0] for values in last_token_logits(model, tokens))
    query, keys = contents(model, tokens, 2, 1, 0)
    order = list(range(7))
    order[first], order[second] = second, first
    expected = permutation.attend(
        query, [keys[t] for t in order], 6, range(7), model.config.frequencies, "interleaved", 8**-0.5, []
    )
    found = swapped_attention(relocated, own, first, second)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(swapped_attention(relocated, own, second, first), found)


def test_planes_are_heads_of_their_own(model, tokens):
    table = plane_table(model, tokens, member=1, layer=1, head=1, temperature=0.1)
    angles = model.config.frequencies
    assert table["angle"].tolist() == angles.tolist()
    scores, norms = [], []
    for row in range(3):
        query, keys = contents(model, tokens, row, 1, 1)
        for plane, angle in enumerate(angles):
            two = slice(2 * plane, 2 * plane + 2)
            found = permutation.swap_scores(
                query[two], list(keys[:6, two]), 6, range(6), angle[None], "interleaved", 8**-0.5, [], None, 0.1
            )
            scores.append([float(found[0]), float(found[1])])
            logits = [
                8**-0.5
                * float(
                    permutation.rotation_matrix(2, t, angle[None], "interleaved")
                    @ keys[t, two]
                    @ (permutation.rotation_matrix(2, 6, angle[None], "interleaved") @ query[two])
                )
                for t in range(6)
            ]
            norms.append(sum(logit**2 for logit in logits) ** 0.5)
    expected = torch.tensor(scores).view(3, len(angles), 2).mean(0)
    torch.testing.assert_close(
        torch.tensor(table[["positional", "symbolic"]].to_numpy()), expected, atol=1e-4, rtol=0, check_dtype=False
    )
    torch.testing.assert_close(
        torch.tensor(table["logit_norm"].to_numpy()),
        torch.tensor(norms).view(3, -1).mean(0),
        atol=1e-4,
        rtol=1e-4,
        check_dtype=False,
    )


def test_own_key_takes_attention_and_stays(model, tokens):
    relocated, own = (values[0, 0, 0, 0] for values in last_token_logits(model, tokens))
    assert attention(relocated, own).sum().item() == pytest.approx(1)
    assert attention(relocated, own + 50)[-1] > 0.99
    bare, beside = (
        swap_scores(relocated, temperature=1.0),
        swap_scores(relocated, extra_logits=own + 50, temperature=1.0),
    )
    assert bare.entropy > beside.entropy
