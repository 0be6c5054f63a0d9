"""What the layers of a trained model do: which token's content sits where, and by which function it came there.

A model's attention is read as a machine that moves tokens. Before the first layer every position holds its own token. A
layer gives each position the token that gets most of its attention: the weights of all keys that hold the same token
are added up, so that a head that spreads over several copies of one token moves that token. What a position holds is
its *state*. As in the constructions of 2605.31558, appendix F, integers of the number task are never moved (the value
map sends them to zero, and the residual stream keeps what was there), while on the letter task every token is.

The task's basic function F is Index on the number task and Retrieval on the letter task, F^0 is Reflexive. A layer
*agrees* with F^k at a position if the state after it is F^k of the states before it. A layer that solves one hop agrees
with F, one that takes two hops at once with F², one that leaves all as it is with Reflexive.

- `attention_maps`: where every position looks in every layer;
- `states`: the tokens that attention moves;
- `functions`: agreement with every F^k, and hops left, for a batch; cheap enough for an evaluation in training;
- `label`: the function that a layer's agreements name;
- `example_flow`: the states of single sequences, as a table.

States are a reading of the attention, not of the residual stream; `possym.experiments.mechanism.interventions` tests
the reading by cause.
Sizes: E members, L layers, B sequences, T positions, H heads, D head width, P = `POWERS`.

Source: 2605.31558, section 3.2, Fig. 3 and appendix F.
"""

from collections.abc import Callable

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from possym.ensembles.gptj import GPTJEnsemble
from possym.rope import rotate
from possym.tasks import Batch, LetterTask, NumberTask
from possym.theory.functions import index, retrieval

POWERS = 4  # no path has more hops
NEVER = POWERS + 1  # hops left where F never leads to the answer
NAMES = {"number": "Index", "letter": "Retrieval"}
SUPERSCRIPTS = ("⁰", "", "²", "³", "⁴")
OTHER = -1  # label of a layer that agrees with no F^k
LEVEL = 0.8
TIE = 0.01
MEMORY = 4 * 2**30  # bytes that a piece of a batch may take


def attention_weights(query: Tensor, key: Tensor, frequencies: Tensor) -> Tensor:
    """Return causal attention weights (..., H, Q, T), scale 1/√D, of contents before rotation.

    Args:
        query: (..., Q, H, D), the last Q positions.
        key: (..., T, H, D).
        frequencies: (F,) angles in radians per position.

    >>> zeros = torch.zeros(2, 1, 2)
    >>> attention_weights(zeros, zeros, torch.ones(1))
    tensor([[[1.0000, 0.0000],
             [0.5000, 0.5000]]])
    """
    Q, T, D = query.shape[-3], key.shape[-3], key.shape[-1]
    positions = torch.arange(T, device=key.device)
    query = rotate(query.transpose(-3, -2), positions[T - Q :], frequencies, "interleaved")
    key = rotate(key.transpose(-3, -2), positions, frequencies, "interleaved")
    logits = query @ key.mT * D**-0.5
    return logits.masked_fill(positions > positions[T - Q :, None], float("-inf")).softmax(-1)


def mix(weights: Tensor, value: Tensor) -> Tensor:
    """Return values (..., T, H, D) mixed by weights (..., H, Q, T), as (..., Q, H, D)."""
    return (weights @ value.transpose(-3, -2)).transpose(-3, -2)


def attention_maps(model: GPTJEnsemble, tokens: Tensor, without: int | None = None) -> Tensor:
    """Return the attention of every position in every layer, mean over heads, (E, L, B, T, T).

    Args:
        model: the ensemble.
        tokens: (E, B, T), or (B, T) that all members read.
        without: a layer in which every position is made to look at itself alone, so that it moves nothing.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=10, layers=2, width=8), seeds=[0])
    >>> attention_maps(model, torch.zeros(3, 5, dtype=torch.int64)).sum(-1).round().unique()
    tensor([1.])
    """
    found: list[Tensor] = []

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = attention_weights(query, key, model.config.frequencies)
        if layer == without:
            weights = torch.eye(key.shape[2], device=key.device).expand(weights.shape)
        found.append(weights.mean(2))
        return mix(weights, value)

    with torch.no_grad():
        model(tokens, all_positions=True, attend=attend)
    return torch.stack(found, 1)


def token_states(weights: Tensor, tokens: Tensor, moves: Tensor | None = None) -> Tensor:
    """Return the token that each position holds before the first and after every layer, (E, L + 1, B, T) int64.

    Of tokens with equal weight the one at the latest position is taken.

    Args:
        weights: (E, L, B, T, T) attention, each row over the keys that its position sees.
        tokens: (E, B, T) int64, or (B, T).
        moves: (V,) bool, which tokens can be moved; a position that looks most at another one keeps its state. None:
            all.

    >>> looks_back = torch.tensor([[[[[1.0, 0.0], [0.9, 0.1]]]]])
    >>> token_states(looks_back, torch.tensor([[7, 8]])).tolist()
    [[[[7, 8]], [[7, 7]]]]
    """
    E, _, B, T = weights.shape[:4]
    held = tokens.expand(E, B, T)
    history = [held]
    for layer in weights.unbind(1):
        same = (held[..., :, None] == held[..., None, :]).to(layer.dtype)
        share = (layer @ same).flip(-1)  # (E, B, T, T): of the token that key j holds, the latest key first
        latest = T - 1 - share.argmax(-1)
        found = held.gather(-1, latest)
        held = found if moves is None else torch.where(moves[found], found, held)
        history.append(held)
    return torch.stack(history, 1)


def moved_tokens(task: NumberTask | LetterTask, device: torch.device) -> Tensor:
    """Return which tokens attention can move (V,): all but the integers of the number task.

    >>> moved_tokens(NumberTask(), "cpu").sum()
    tensor(120)
    """
    fixed = [isinstance(task, NumberTask) and name.isdigit() for name in task.vocabulary]
    return ~torch.tensor(fixed, device=device)


def basic_function(task: NumberTask | LetterTask, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the task's basic function on token ids (..., T): Index or Retrieval.

    Where Retrieval is not defined, since its token is missing or not the same wherever it occurs, the token stays.

    >>> task = LetterTask()
    >>> ids = torch.tensor([task.vocabulary.index(token) for token in ["b3", "cb", "dc"]])
    >>> task.decode(basic_function(task, ids.device)(ids))
    ['b3', 'b3', 'cb']
    """
    if isinstance(task, NumberTask):
        values = torch.tensor([int(name) if name.isdigit() else 0 for name in task.vocabulary], device=device)
        return lambda tokens: index(tokens, values)
    left = torch.tensor([ord(name[0]) for name in task.vocabulary], device=device)
    right = torch.tensor([ord(name[1]) if name[1].isalpha() else -1 for name in task.vocabulary], device=device)
    return lambda tokens: retrieval(tokens, left, right)[0]


def function_name(task: str, power: int) -> str:
    """Return the name of F^k for a task by its name, such as ``"Index"``.

    >>> function_name("letter", 2), function_name("number", 0), function_name("number", -1)
    ('Retrieval²', 'Reflexive', 'other')
    """
    return {OTHER: "other", 0: "Reflexive"}.get(power, NAMES[task] + SUPERSCRIPTS[power])


def functions(
    model: GPTJEnsemble, task: NumberTask | LetterTask, batch: Batch, without: int | None = None
) -> dict[str, Tensor]:
    """Return which F^k every layer agrees with, and how many hops are left after it, as shares of the batch.

    Args:
        model: E members with L layers.
        task: the task that drew the batch.
        batch: fields with a leading member axis, (E, B, …).
        without: as for `attention_maps`.

    Returns:
        - ``path`` (E, L, P + 1): share of the positions on paths, the answers' left out, at which the layer is F^k;
        - ``last`` (E, L, P + 1): the same at the last position alone;
        - ``left`` (E, L + 1, P, P + 2): of the sequences with 1, 2, … P hops, the share that has 0, 1, …, P hops left
          at the last position, or will never arrive, before the first and after each layer: hops left are the times
          that F has to be applied to the states until the last position holds the answer. NaN where no sequence has
          these hops;
        - ``advance`` (E, L, P + 1): of all sequences, the share that still had hops left before the layer and goes
          forward by 0, 1, …, P; what is missing to the share that had hops left goes backwards.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> task = NumberTask()
    >>> found = functions(model, task, Batch(*(column[None] for column in task.sample(4))))
    >>> {name: tuple(values.shape) for name, values in found.items()}
    {'path': (1, 2, 5), 'last': (1, 2, 5), 'left': (1, 3, 4, 6), 'advance': (1, 2, 5)}
    """
    device, function = batch.tokens.device, basic_function(task, batch.tokens.device)
    E, B, T = batch.tokens.shape
    bytes_each = E * T * (160 * model.config.width + 32 * (model.config.layers + 1) * T)
    sums: dict[str, Tensor] = {}
    for rows in torch.arange(B).split(max(1, MEMORY // bytes_each)):
        part = Batch(*(column[:, rows[0] : rows[-1] + 1] for column in batch))
        maps = attention_maps(model, part.tokens, without)
        counts = compare(token_states(maps, part.tokens, moved_tokens(task, device)), function, part)
        sums = {name: sums.get(name, 0) + count for name, count in counts.items()}
    return {
        "path": sums["path"] / sums["places"][:, None, None],
        "last": sums["last"] / B,
        "left": sums["left"] / sums["left"].sum(-1, keepdim=True),
        "advance": sums["advance"] / B,
    }


def compare(history: Tensor, function: Callable[[Tensor], Tensor], batch: Batch) -> dict[str, Tensor]:
    """Return the counts behind `functions`, of states (E, L + 1, B, T), and ``places`` (E,) on paths."""
    E, B, T = batch.tokens.shape
    powers = [history]
    for _ in range(POWERS):
        powers.append(function(powers[-1]))
    future = torch.stack(powers)  # (P + 1, E, L + 1, B, T)
    agrees = (future[:, :, :-1] == history[:, 1:]).double()  # (P + 1, E, L, B, T)
    walked = torch.arange(batch.path.shape[-1], device=history.device) < batch.hops[..., None]
    on_path = torch.zeros(E, B, T, dtype=torch.float64, device=history.device)
    on_path.scatter_add_(-1, batch.path.clamp(min=0), walked.double())
    arrived = future[..., -1] == batch.answer[:, None]  # (P + 1, E, L + 1, B)
    left = torch.where(arrived.any(0), arrived.int().argmax(0), NEVER)  # (E, L + 1, B)
    hops = F.one_hot(batch.hops - 1, POWERS).double()  # (E, B, P)
    before, gone = left[:, :-1], left[:, :-1] - left[:, 1:]
    going = (before > 0) & (before < NEVER)
    forward = gone[..., None] == torch.arange(POWERS + 1, device=history.device)
    return {
        "path": torch.einsum("kelbt,ebt->elk", agrees, on_path),
        "places": on_path.sum((1, 2)),
        "last": agrees[..., -1].sum(-1).permute(1, 2, 0),
        "left": torch.einsum("elbk,ebh->elhk", F.one_hot(left, NEVER + 1).double(), hops),
        "advance": (forward & going[..., None]).double().sum(2),
    }


def example_flow(model: GPTJEnsemble, task: NumberTask | LetterTask, batch: Batch) -> pd.DataFrame:
    """Return which token sits where after each layer of the first member, on every sequence of a batch.

    Args:
        model: the ensemble.
        task: the task that drew the batch.
        batch: fields without a member axis, (B, …).

    Returns:
        sequence, hops, layer (−1 is the input), place, token, path (whether the position is on the path), changed
        (whether the layer brought another token).

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> len(example_flow(model, NumberTask(), NumberTask().sample(1)))
    51
    """
    maps = attention_maps(model, batch.tokens)[:1]
    history = token_states(maps, batch.tokens, moved_tokens(task, batch.tokens.device))[0]  # (L + 1, B, T)
    rows = []
    for sequence, (hops, path) in enumerate(zip(batch.hops.tolist(), batch.path.tolist(), strict=True)):
        before = history[0, sequence]
        for layer, held in enumerate(history[:, sequence], -1):
            changed = (held != before).tolist()
            rows += [
                (sequence, hops, layer, position, name, position in path, changed[position])
                for position, name in enumerate(task.decode(held))
            ]
            before = held
    return pd.DataFrame(rows, columns=["sequence", "hops", "layer", "place", "token", "path", "changed"])


def label(agreement: Tensor) -> Tensor:
    """Return the k of the function F^k that agreements (..., P + 1) name, `OTHER` where none reaches `LEVEL`.

    The smallest k within `TIE` of the best is taken: where all hops are done every F^k agrees, and the layer is
    Reflexive.

    >>> label(torch.tensor([[0.4, 0.7, 1.0, 0.9], [1.0, 1.0, 1.0, 1.0], [0.2, 0.3, 0.3, 0.3]]))
    tensor([ 2,  0, -1])
    """
    best = agreement.amax(-1)
    smallest = (agreement >= best[..., None] - TIE).int().argmax(-1)
    return torch.where(best >= LEVEL, smallest, OTHER)
