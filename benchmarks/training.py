"""Milliseconds a model-step: an ensemble of E GPT-Js against transformers, one model at a time.

Both take the paper's step: 64 sequences of 17 tokens, 12 layers, width 128, dropout 0.1, cross-entropy at the
last place, gradients clipped, fused AdamW, bfloat16 products on CUDA. The ensemble's time includes its data
and its dropout masks; transformers runs eagerly under autocast and computes the last place's logits alone.
The last rows time what a study adds at each of its evaluations.
"""

import itertools
import statistics
import time

import torch
import torch.nn.functional as F
from common import median_ms, parser, positive, report, synchronize
from torch import Tensor
from transformers import GPTJForCausalLM

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.schedule import TrainingConfig
from possym.ensembles.streams import generator
from possym.ensembles.token_table import TokenTable
from possym.ensembles.training import Trainer, training_dtype
from possym.experiments.learning_dynamics import score_heads, score_variants
from possym.experiments.trained import accuracy_by_hops, stack
from possym.results import choose_device
from possym.tasks import NumberTask

SEGMENTS = 7  # the first is not counted


def data(members: int, count: int, device: torch.device):
    """Return a batch of number-task sequences with a leading member axis."""
    return stack([NumberTask().sample(count, generator=generator(m, "data", device)) for m in range(members)])


def ensemble(config: GPTJConfig, members: int, batch: int, segment: int, device: torch.device) -> float:
    """Return milliseconds a step of all members together."""
    steps = SEGMENTS * segment
    drawn = data(members, steps * batch, device)
    model = GPTJEnsemble(config, range(members)).to(device)
    clock = []

    def evaluate(model: GPTJEnsemble, step: int) -> dict[str, Tensor]:
        synchronize(device)
        clock.append(time.perf_counter())
        return {}

    Trainer(
        model,
        TokenTable(drawn.tokens, drawn.answer, batch),
        TrainingConfig(steps, batch, warmup=1),
        range(members),
        evaluate=evaluate,
        evaluate_at=range(0, steps + 1, segment),
        description=f"{members} members",
    ).run()
    return 1e3 * statistics.median(b - a for a, b in itertools.pairwise(clock[1:])) / segment


def one_at_a_time(model: GPTJForCausalLM, batch: int, segment: int, device: torch.device) -> float:
    """Return milliseconds a step of one transformers model."""
    model = model.to(device).train()
    drawn = data(1, segment * batch, device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, betas=(0.95, 0.999), weight_decay=1e-4, fused=True)

    def run() -> None:
        for step in range(segment):
            rows = slice(step * batch, (step + 1) * batch)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = model(drawn.tokens[0, rows], use_cache=False, logits_to_keep=1).logits[:, -1]
            loss = F.cross_entropy(logits.float(), drawn.answer[0, rows])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return median_ms(run, device, SEGMENTS - 2) / segment


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__.split("\n")[0], "training.json")
    options.add_argument("--members", type=positive, nargs="+", default=None, help="sizes of ensembles (1 8 32)")
    chosen = options.parse_args()
    device = choose_device(chosen.device)
    config = GPTJConfig(136, layers=2, width=32) if chosen.tiny else GPTJConfig(136)
    batch, segment, scored, validated, varied = (8, 3, 20, 40, 8) if chosen.tiny else (64, 60, 1_000, 2_400, 48)
    members = chosen.members or ([1, 2] if chosen.tiny else [1, 8, 32])

    theirs = one_at_a_time(GPTJEnsemble(config, [0]).member_to_transformers(0), batch, segment, device)
    rows = [{"what": "transformers, one model", "members": 1, "ms": theirs, "ms_per_model": theirs, "times_faster": 1}]
    for count in members:
        ours = ensemble(config, count, batch, segment, device)
        rows.append(
            {
                "what": "possym ensemble, a step",
                "members": count,
                "ms": ours,
                "ms_per_model": ours / count,
                "times_faster": theirs * count / ours,
            }
        )
    hops, dtype = (1, 2, 3, 4), training_dtype(device)
    for count in members:
        model = GPTJEnsemble(config, range(count)).to(device)
        held_out, validation = data(1, scored, device).tokens[0], data(count, validated, device)
        some = NumberTask().sample(varied, generator=generator(0, "held-out", device))
        for what, function in (
            (f"scores on {scored} sequences", lambda m=model, t=held_out: score_heads(m, t, 1e-4)),
            (f"accuracy on {validated} sequences", lambda m=model, b=validation: accuracy_by_hops(m, b, hops, dtype)),
            (f"variants on {varied} sequences", lambda m=model, b=some: score_variants(m, b, (1e-4, 1e-2, 1e-1))),
        ):
            spent = median_ms(function, device)
            rows.append({"what": what, "members": count, "ms": spent, "ms_per_model": spent / count})
        del model
    report(rows, chosen.output, device, batch=batch, layers=config.layers, width=config.width)


if __name__ == "__main__":
    main()
