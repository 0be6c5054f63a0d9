"""A head's logits are the sum of its planes', and every weighting is what its words say, by plain loops."""

import math

import pytest
import torch

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.planes import WEIGHTINGS, contents, dominant_frequency, plane_contents, plane_weights
from possym.errors import InputError
from possym.experiments.mechanism.token_flow import attention_maps
from possym.scores import relocated_logits
from possym.tasks import NumberTask

TASK = NumberTask()
MODEL = GPTJEnsemble(GPTJConfig(136, layers=2, heads=2, width=16, init_std=0.6), [0, 1])


def test_plane_weights_are_those_of_plain_loops():
    tokens = TASK.sample(5).tokens
    found = plane_weights(MODEL, tokens)
    assert tuple(found) == WEIGHTINGS
    with torch.no_grad():
        queries, keys, _ = MODEL.trace(tokens)
    maps = attention_maps(GPTJEnsemble.from_weights(MODEL.config, dict(MODEL.named_parameters())), tokens)
    logits = relocated_logits(
        queries, keys, query_position=16, positions=torch.arange(17), frequencies=MODEL.config.frequencies,
        layout="interleaved", per_plane=True,
    ).diagonal(dim1=-2, dim2=-1).double()  # (E, L, B, H, F, T)  # fmt: skip
    attention = logits.sum(-2).softmax(-1)
    torch.testing.assert_close(attention.mean(3).float(), maps[..., -1, :], atol=1e-5, rtol=0)
    for member, layer, head, plane in ((0, 0, 0, 0), (1, 1, 1, 3), (0, 1, 0, 2)):
        sums = dict.fromkeys(WEIGHTINGS, 0.0)
        for row in range(5):
            values = logits[member, layer, row, head, plane].tolist()
            weights = attention[member, layer, row, head].tolist()
            mean = sum(values) / 17
            energy = sum(value**2 for value in values)
            sums["norm"] += math.sqrt(energy)
            sums["energy"] += energy
            sums["variance"] += sum((value - mean) ** 2 for value in values) / 17
            sums["effect"] += abs(sum(w * v for w, v in zip(weights, values, strict=True)) - mean)
        for name, total in sums.items():
            assert found[name][member, layer, head, plane].item() == pytest.approx(total / 5, rel=1e-4), name


def test_dominant_frequency_is_a_weighted_average_of_ids_from_one():
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0], [1.0, 1.0, 2.0]])
    assert dominant_frequency(weights).tolist() == [1.0, 3.0, 2.25]
    for wrong in (torch.zeros(3), torch.tensor([1.0, -1.0]), torch.tensor([1, 2]), torch.tensor(1.0)):
        with pytest.raises(InputError, match="not all 0"):
            dominant_frequency(wrong)


def test_planes_of_a_head_add_up_to_its_attention():
    tokens = TASK.sample(3).tokens
    member, layer, head = 1, 1, 0
    logits = torch.zeros(17, 17)
    for frequency_id in range(1, 5):
        table = plane_contents(MODEL, TASK, tokens[2], layer=layer, frequency_id=frequency_id, member=member, head=head)
        query, key = (
            torch.tensor(table.loc[table["kind"] == kind, ["turned_x", "turned_y"]].to_numpy())
            for kind in ("query", "key")
        )
        logits += (query @ key.T).float() / math.sqrt(8)
        angle = MODEL.config.frequencies[frequency_id - 1].item()
        for row in table.itertuples():
            turned = complex(row.x, row.y) * complex(math.cos(row.place * angle), math.sin(row.place * angle))
            assert (row.turned_x, row.turned_y) == pytest.approx((turned.real, turned.imag), abs=1e-5)
            assert row.token == TASK.decode(tokens[2, row.place])
    found = contents(MODEL, tokens)
    with torch.no_grad():
        queries, keys, _ = MODEL.trace(tokens)
    torch.testing.assert_close(found.queries[:, :, :, -1], queries)
    torch.testing.assert_close(found.keys.transpose(3, 4), keys)
    mask = torch.ones(17, 17, dtype=torch.bool).tril()
    other = 0 if head else 1
    maps = attention_maps(MODEL, tokens)[member, layer, 2]
    ours = logits.masked_fill(~mask, -math.inf).softmax(-1)
    theirs = 2 * maps - whole(tokens[2], member, layer, other)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def whole(tokens, member, layer, head):
    """Attention of one head, from transformers."""
    theirs = MODEL.member_to_transformers(member)
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        return theirs(tokens[None], output_attentions=True).attentions[layer][0, head]
