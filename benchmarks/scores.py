"""Scores of every head: the closed form against permuting and redoing the attention.

One GPT-J (12 layers, width 128), 1,200 sequences of 17 tokens, all 120 swaps of the 16 keys before the last
place, τ = 1e-4, same data, same device, float32. Three ways to the same numbers:

- *redo the layer*: for each layer and swap, swap the hidden states that enter the layer, run its LayerNorm,
  projections, rotation, logits and softmax on all sequences at once, read the last place's weights (2605.31558,
  appendix D; values and output are left out, as the scores do not need them);
- *redo the softmax*: keep queries and keys before rotation, for each swap permute the keys, then rotation,
  logits and softmax of the last place, all layers and sequences at once;
- *closed form*: `relocated_logits` and `swap_scores`;
- *one call*: what the studies do, `possym.ensembles.query_scores.query_scores`: one kernel on a GPU.

The first starts from the hidden states of one forward pass, which is not counted; the others start from the
queries and keys of one, which a row of its own counts.
"""

import itertools
import math

import torch
from common import count_launches, median_ms, parser, report, write
from torch import Tensor
from transformers import GPTJForCausalLM

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.query_scores import query_scores
from possym.ensembles.streams import generator
from possym.results import choose_device
from possym.rope import rotate
from possym.scores import relocated_logits, swap_scores
from possym.tasks import NumberTask

TEMPERATURE = 1e-4


def from_attention(before: Tensor, after: list[Tensor], pairs: list[tuple[int, int]]) -> Tensor:
    """Return both scores (2, …) from the last place's weights (…, T) before, and after each swap of a pair."""
    first, second = torch.tensor(pairs, device=before.device).T
    v = torch.stack([before[..., first], before[..., second]])
    w = torch.stack([torch.stack([a[..., i] for a, (i, _) in zip(after, pairs, strict=True)], -1),
                     torch.stack([a[..., j] for a, (_, j) in zip(after, pairs, strict=True)], -1)])  # fmt: skip
    # Each pair divided by its maximum: torch's cosine_similarity clamps the small norms of tiny weights.
    v, w = (pair / pair.amax(0).clamp(min=torch.finfo(pair.dtype).tiny) for pair in (v, w))
    norm = v.norm(dim=0) * w.norm(dim=0)
    alpha = ((before[..., first] - before[..., second]).abs() / TEMPERATURE).softmax(-1)
    return torch.stack([(alpha * (v * w).sum(0) / norm).sum(-1), (alpha * (v * w.flip(0)).sum(0) / norm).sum(-1)])


def redo_layers(
    model: GPTJForCausalLM, hidden: list[Tensor], config: GPTJConfig, pairs: list[tuple[int, int]]
) -> Tensor:
    """Return both scores (2, L, B) by running each layer's attention again for each swap."""
    length = hidden[0].shape[1]
    frequencies = config.frequencies.to(hidden[0].device)
    places = torch.arange(length, device=hidden[0].device)
    causal = torch.full((length, length), -math.inf, device=hidden[0].device).triu(1)

    def attention(block: torch.nn.Module, x: Tensor) -> Tensor:
        normed = block.ln_1(x)
        query = rotate(block.attn.q_proj(normed), places, frequencies, "interleaved")
        key = rotate(block.attn.k_proj(normed), places, frequencies, "interleaved")
        return (query @ key.mT * config.head_width**-0.5 + causal).softmax(-1)[:, -1]

    scores = []
    for block, x in zip(model.transformer.h, hidden, strict=False):
        after = []
        for i, j in pairs:
            order = list(range(length))
            order[i], order[j] = j, i
            after.append(attention(block, x[:, order]))
        scores.append(from_attention(attention(block, x), after, pairs))
    return torch.stack(scores, 1)


def redo_softmax(query: Tensor, keys: Tensor, config: GPTJConfig, pairs: list[tuple[int, int]]) -> Tensor:
    """Return both scores (2, L, B) by permuting the keys (L, B, T, D) and redoing rotation, logits and softmax."""
    length = keys.shape[-2]
    frequencies = config.frequencies.to(keys.device)
    places = torch.arange(length, device=keys.device)
    turned_query = rotate(query, length - 1, frequencies, "interleaved").unsqueeze(-1) * config.head_width**-0.5

    def attention(contents: Tensor) -> Tensor:
        return (rotate(contents, places, frequencies, "interleaved") @ turned_query).squeeze(-1).softmax(-1)

    after = []
    for i, j in pairs:
        order = list(range(length))
        order[i], order[j] = j, i
        after.append(attention(keys[..., order, :]))
    return from_attention(attention(keys), after, pairs)


def closed_form(query: Tensor, keys: Tensor, config: GPTJConfig) -> Tensor:
    """Return both scores (2, L, B) from relocated logits."""
    last = keys.shape[-2] - 1
    relocated = relocated_logits(
        query,
        keys[..., :last, :],
        query_position=last,
        positions=torch.arange(last),
        frequencies=config.frequencies,
        layout="interleaved",
    )
    own = (query * keys[..., last, :]).sum(-1, keepdim=True) * config.head_width**-0.5
    scores = swap_scores(relocated, extra_logits=own, temperature=TEMPERATURE)
    return torch.stack([scores.positional, scores.symbolic])


def one_call(query: Tensor, keys: Tensor, angles: Tensor) -> Tensor:
    """Return both scores as a study takes them."""
    given = dict(frequencies=angles, layout="interleaved", temperatures=(TEMPERATURE,))
    scores = query_scores(query.unsqueeze(-2), keys, **given)
    return torch.stack([scores.positional, scores.symbolic])[:, 0, ..., 0]


@torch.no_grad()
def main() -> None:
    """Run the benchmark."""
    chosen = parser(__doc__.split("\n")[0], "scores.json").parse_args()
    device = choose_device(chosen.device)
    layers, width, samples = (2, 32, 30) if chosen.tiny else (12, 128, 1_200)
    config = GPTJConfig(136, layers=layers, width=width, init_std=0.1)  # wide, so that attention is not uniform
    model = GPTJEnsemble(config, [0]).to(device)
    theirs = model.member_to_transformers(0).to(device)
    tokens = NumberTask().sample(samples, generator=generator(0, "held-out", device)).tokens
    pairs = list(itertools.combinations(range(16), 2))

    hidden = theirs(tokens, output_hidden_states=True, use_cache=False).hidden_states
    trace = model.trace(tokens)
    query, keys = trace.queries[0, :, :, 0], trace.keys[0, :, :, 0]
    ways = {
        "redo the layer": lambda: redo_layers(theirs, hidden, config, pairs),
        "redo the softmax": lambda: redo_softmax(query, keys, config, pairs),
        "closed form": lambda: closed_form(query, keys, config),
        "one call": lambda: one_call(query, keys, model.angles),
    }
    exact = closed_form(query.double(), keys.double(), config)
    rows = []
    for what, function in ways.items():
        difference = (function() - exact).abs()
        spent = median_ms(function, device, 3 if what.startswith("redo") else 20)
        rows.append(
            {
                "what": what,
                "ms": spent,
                "largest_difference": difference.max().item(),
                "mean_difference": difference.mean().item(),
            }
        )
        write(rows, chosen.output, device, samples=samples, layers=layers, swaps=len(pairs))
    forward = median_ms(lambda: model.trace(tokens), device)
    for row in rows:  # after all times: from the first count on every launch takes longer
        row["launches"] = count_launches(ways[row["what"]], device)
    rows.append({"what": "forward pass for queries and keys", "ms": forward})
    by_layer, by_softmax, closed, ours = (row["ms"] for row in rows[:4])
    report(
        rows,
        chosen.output,
        device,
        samples=samples,
        layers=layers,
        swaps=len(pairs),
        times_faster_than_redoing_the_layer=by_layer / ours,
        times_faster_than_redoing_the_layer_forward_included=by_layer / (ours + forward),
        times_faster_than_redoing_the_softmax=by_softmax / ours,
        times_faster_than_the_closed_form=closed / ours,
    )


if __name__ == "__main__":
    main()
