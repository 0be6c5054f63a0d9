"""What heads carry, against plain windows of one query each, and heads silenced by a hook."""

from contextlib import ExitStack

import pytest
import torch
import torch.nn.functional as F

from possym.experiments.language_models import carriers

from .test_model import model_of

TEXT = torch.randint(40, (3, 24), generator=torch.Generator().manual_seed(5))
DISTANCES = [2, 8, 14]
LEAD = torch.linspace(1, -1, 8).view(2, 4)


def plainly(model, silent):
    """Loss of every pair's second by one plain window per query: planted {distance}, absent {distance}."""
    pairs = torch.randint(40, (3, 3, 2), generator=torch.Generator().manual_seed(7)).tolist()
    found = {}
    with torch.no_grad(), ExitStack() as stack:
        for layer, block in enumerate(model.blocks):
            keep = torch.tensor([(layer, head) not in silent for head in range(4)]).repeat_interleave(16)
            hook = block.output.register_forward_pre_hook(lambda module, args, keep=keep: (args[0] * keep,))
            stack.callback(hook.remove)
        for name, other in (("planted", 0), ("absent", 1)):
            for which, distance in enumerate(DISTANCES):
                losses = []
                for row in range(3):
                    words = TEXT[row].tolist()
                    for (first, second), back in zip(pairs[row], DISTANCES, strict=True):
                        words[23 - back], words[24 - back] = first, second
                    words[23], answer = pairs[(row - other) % 3][which]
                    logits = model(torch.tensor([words]), model.turns(24))[0, -1]
                    losses.append(float(F.cross_entropy(logits, torch.tensor(answer))))
                found[name, distance] = sum(losses) / 3
    return found


def test_losses_without_heads_are_those_of_plain_windows():
    model = model_of("rope")
    with torch.no_grad():
        model.embedding.weight.mul_(20)
    table = carriers.recall_without(model, TEXT, DISTANCES, LEAD, seed=7)
    groups = {
        ("none", -1, -1): set(),
        ("head", 0, 2): {(0, 2)},
        ("head", 1, 3): {(1, 3)},
        ("positional quarter", -1, -1): {(0, 0), (0, 1)},
        ("symbolic quarter", -1, -1): {(1, 2), (1, 3)},
    }
    ends = {}
    for (group, layer, head), silent in groups.items():
        rows = table[(table["group"] == group) & (table["layer"] == layer) & (table["head"] == head)]
        expected = plainly(model, silent)
        for row in rows.itertuples():
            assert row.planted == pytest.approx(expected["planted", row.distance], abs=1e-4)
            assert row.absent == pytest.approx(expected["absent", row.distance], abs=1e-4)
        ends[group, layer, head] = rows["planted"].sum()
    assert len({round(end, 2) for end in ends.values()}) == 5
    assert len(table) == 3 * (1 + 8 + 2 + 2 * carriers.DRAWS)
    again = carriers.recall_without(model, TEXT, DISTANCES, LEAD, seed=7)
    assert again.equals(table)  # heads write again as before


def test_random_groups_have_as_many_heads_in_every_layer():
    lead = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    groups = carriers.groups_of(lead, seed=3)
    assert [name for name, *_ in groups].count("as many as symbolic") == carriers.DRAWS
    for kind in ("symbolic", "positional"):
        chosen = next(heads for name, _, heads in groups if name == f"{kind} quarter")
        drawn = [heads for name, _, heads in groups if name == f"as many as {kind}"]
        assert chosen.sum() == 12 and all((heads.sum(1) == chosen.sum(1)).all() for heads in drawn)
        assert any((heads != chosen).any() for heads in drawn)
        inside, outside = lead[chosen], lead[~chosen]
        assert inside.max() < outside.min() if kind == "symbolic" else inside.min() > outside.max()


@pytest.mark.parametrize("length", [12, 16, 64, 512])
def test_pairs_never_overlap(length):
    distances = carriers.distances_of(length)
    taken = [place for back in distances for place in (length - 1 - back, length - back)]
    assert len(set(taken)) == len(taken) and 0 <= min(taken) and max(taken) < length - 1
