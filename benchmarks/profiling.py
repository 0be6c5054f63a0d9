"""Profile of a real model: against the model's own forward pass, and against permuting and attending again.

On a CPU the model is SmolLM2-135M-Instruct at 512 tokens, in float32; on a GPU the shapes of gemma-2-2b and
Llama-3-8B with random weights at 2,048 and 8,192 tokens, in bfloat16. Same prompt, same run, in turns, medians:

- *forward*: the model as transformers runs it, logits of the last token alone;
- *capture*: the same with queries and keys taken, and nothing done with them;
- *probe*: the model is asked how it rotates, once as long as its parameters stay as they are;
- *profile*: every head scored, the tables included, on a model that has been asked, swaps weighed by ratios; and
  *profile, absolute*: by differences;
- *16 queries*: the same with 16 query positions, evenly over the prompt; *of_one* is over one query at its end;
- *profile with frequencies*: every RoPE plane scored too. Each swap of each plane needs two exponentials; *floor* is
  the time of that many exponentials alone, in place on a buffer that stays in cache.

On a GPU one more model, two layers of Llama-3-8B's shape, reads 32,768, 65,536 and 131,072 tokens. There *floor* is the
time of the products alone that relocated logits are. What is launched is counted beside every time: kernels on a GPU,
operations on a CPU.

Every row is written as soon as it is there. To compare with another commit on the same machine in the same run, put its
library first:
``git archive COMMIT possym | tar -x -C FOLDER``, then ``PYTHONPATH=FOLDER python benchmarks/profiling.py``.

On a CPU the scores are also compared with the procedure they replace: for every swap, move the hidden states that
enter each layer and let its attention run again (2605.31558, appendix D).
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from common import count_launches, median_ms, parser, positive, report, synchronize, write
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig

import possym
from possym import kernels
from possym.capture import Capture
from possym.models import hub
from possym.results import choose_device
from possym.scores import plane_scores, scores_and_exclusion, swap_scores

LLAMA = dict(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    rope_parameters=dict(rope_type="default", rope_theta=500000.0),
)
SHAPES = {
    "gemma-2-2b shape": Gemma2Config(),
    "Llama-3-8B shape": LlamaConfig(**LLAMA),
}
TEMPERATURE = 0.1
LONG = (2**15, 2**16, 2**17)
SWAPS = 10_000  # of a head, where its scores are estimated


def random_model(config: object, device: torch.device) -> nn.Module:
    """Return a model of a shape with random weights, in bfloat16."""
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def exponentials_ms(count: int, device: torch.device) -> float:
    """Return the milliseconds of ``count`` exponentials in place on a buffer that stays in cache."""
    buffer = torch.zeros(2**22 if device.type == "cuda" else 2**16, device=device)
    rounds = max(1, min(count // buffer.numel(), 2_000))
    spent = median_ms(lambda: [buffer.zero_().exp_() for _ in range(rounds)], device, 3)
    zeros = median_ms(lambda: [buffer.zero_() for _ in range(rounds)], device, 3)
    return (spent - zeros) * count / (rounds * buffer.numel())


Row = tuple[dict, Callable[[], object] | None]  # what was measured, and the call whose launches are to be counted


def measure(name: str, model: nn.Module, tokens: Tensor, frequencies: bool) -> Iterator[Row]:
    """Yield one row a way of running one model on one prompt, the main ones first."""
    device = tokens.device
    model(tokens[None, :16], use_cache=False)
    synchronize(device)
    start = time.perf_counter()
    capture = Capture(model)
    synchronize(device)
    shared = {"model": name, "tokens": len(tokens)}
    yield shared | {"what": "probe", "ms": 1e3 * (time.perf_counter() - start)}, None
    planes = int((capture.coverage.planes * capture.coverage.heads).sum())
    keys = len(tokens) - 1
    floor = exponentials_ms(planes * keys * (keys - 1), device) if frequencies else None
    length = len(tokens)
    queries = [length * k // 16 - 1 for k in range(1, 17)]
    absolute = dict(temperature=TEMPERATURE, relative=False)
    ways = {
        "forward": lambda: model(tokens[None], use_cache=False, logits_to_keep=1),
        "capture": lambda: capture.run(tokens, lambda inputs: None, together=True),
        "profile": lambda: possym.profile(model, tokens, progress=False),
        "profile, absolute": lambda: possym.profile(model, tokens, progress=False, **absolute),
    }
    if length <= 4096:  # more takes minutes
        ways["16 queries"] = lambda: possym.profile(model, tokens, query=queries, progress=False)
    if frequencies:
        ways["profile with frequencies"] = lambda: possym.profile(
            model, tokens, per_frequency=True, progress=False, **absolute
        )
    rows = in_turns(ways, device, 9 if device.type == "cuda" else 3)  # a host's times differ more than a card's
    for what, row in rows.items():
        row["of_forward"] = row["ms"] / rows["forward"]["ms"]
        if what == "16 queries":
            row["of_one"] = row["ms"] / rows["profile"]["ms"]
        if what == "profile with frequencies":
            row |= {"floor_ms": floor, "of_floor": (row["ms"] - rows["profile, absolute"]["ms"]) / floor}
        yield shared | {"what": what} | row, ways[what]


def in_turns(ways: dict[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, dict[str, float]]:
    """Return what each way costs, as `cost` does, and the least of its times: a noisy host is then noisy for all."""
    rows = {what: cost(function, device, 1) for what, function in ways.items()}
    times = {what: [] for what in ways}
    for _ in range(rounds):
        for what, function in ways.items():
            times[what].append(median_ms(function, device, 1, 0))
    for what, row in rows.items():
        row |= {"ms": statistics.median(times[what]), "least_ms": min(times[what])}
    return rows


def cost(function: Callable[[], object], device: torch.device, repeats: int, uncounted: int = 2) -> dict[str, float]:
    """Return the median milliseconds of a call after some that are not timed and, on a GPU, the most memory taken."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    row = {"ms": median_ms(function, device, repeats, uncounted)}
    if device.type == "cuda":
        row["peak_GiB"] = torch.cuda.max_memory_allocated(device) / 2**30
    return row


def measure_long(config: LlamaConfig, lengths: Sequence[int], device: torch.device) -> Iterator[Row]:
    """Yield the cost of two layers of a shape on long prompts, beside that of the products alone."""
    model = random_model(config, device)
    for swaps in (None, SWAPS):  # what is done once a model, and kernels are compiled
        possym.profile(model, torch.arange(40, device=device), swaps=swaps, progress=False)
    for length in lengths:
        tokens = torch.randint(config.vocab_size, (length,), generator=torch.Generator().manual_seed(0)).to(device)
        shared = {"model": f"{config.num_hidden_layers} layers of Llama-3-8B", "tokens": length}
        ways = {
            "forward": lambda tokens=tokens: model(tokens[None], use_cache=False, logits_to_keep=1),
            "profile": lambda tokens=tokens: possym.profile(model, tokens, progress=False),
            f"profile, {SWAPS:,} swaps": lambda tokens=tokens: possym.profile(
                model, tokens, swaps=SWAPS, progress=False
            ),
        }
        forward = cost(ways["forward"], device, 1, uncounted=1)
        yield shared | {"what": "forward"} | forward, ways["forward"]
        profiled = cost(ways["profile"], device, 1, uncounted=1)
        width = config.hidden_size // config.num_attention_heads
        some, everything = (torch.randn(n, width, device=device) for n in (min(512, length), length))
        product = median_ms(lambda a=some, b=everything: a @ b.mT, device, 3)
        heads = config.num_hidden_layers * config.num_attention_heads
        profiled["floor_ms"] = product * length / len(some) * heads
        profiled["of_floor"] = (profiled["ms"] - forward["ms"]) / profiled["floor_ms"]
        if device.type == "cuda":
            profiled["beyond_forward_GiB"] = profiled["peak_GiB"] - forward["peak_GiB"]
        yield shared | {"what": "profile"} | profiled, ways["profile"]
        (drawn,) = (what for what in ways if "swaps" in what)
        yield shared | {"what": drawn} | cost(ways[drawn], device, 1, uncounted=1), ways[drawn]


def permute(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return both scores (2, L, H) by moving hidden states for every swap and letting each layer attend again."""
    calls = []
    modules = [m for m in model.modules() if type(m).__name__.endswith("Attention")]
    handles = [
        m.register_forward_hook(lambda m, args, kwargs, out: calls.append((m, kwargs, out[1])), with_kwargs=True)
        for m in modules
    ]
    model(tokens[None], use_cache=False)
    for handle in handles:
        handle.remove()
    last = len(tokens) - 1
    pairs = list(itertools.combinations(range(last), 2))
    first, second = torch.tensor(pairs).T
    orders = torch.arange(last + 1).repeat(len(pairs), 1)
    rows = torch.arange(len(pairs))
    orders[rows, first], orders[rows, second] = second, first
    scores = []
    for module, kwargs, weights in calls:
        before = weights[0, :, -1]
        after = []
        for some in orders.split(128):
            moved = kwargs | {"hidden_states": kwargs["hidden_states"][0, some]}
            after.append(module(**moved)[1][:, :, -1])
        after = torch.cat(after).transpose(0, 1)
        v = torch.stack([before[:, first], before[:, second]])
        w = torch.stack([after[:, rows, first], after[:, rows, second]])
        v, w = (pair / pair.amax(0).clamp(min=torch.finfo(pair.dtype).tiny) for pair in (v, w))
        norm = v.norm(dim=0) * w.norm(dim=0)
        alpha = ((before[:, first] - before[:, second]).abs() / TEMPERATURE).softmax(-1)
        both = [(alpha * (v * other).sum(0) / norm).sum(-1) for other in (w, w.flip(0))]
        scores.append(torch.stack(both))
    return torch.stack(scores, 1)


def against_permuting(model: nn.Module, tokens: Tensor) -> list[dict]:
    """Return the time of the procedure and of the profile on one prompt, and how far apart their scores are."""
    model.set_attn_implementation("eager")
    synchronize(tokens.device)
    start = time.perf_counter()
    slow = permute(model, tokens)
    spent = 1e3 * (time.perf_counter() - start)
    options = dict(temperature=TEMPERATURE, relative=False, progress=False)
    table = possym.profile(model, tokens, **options).heads
    fast = torch.tensor(table[["positional", "symbolic"]].to_numpy()).T.reshape(slow.shape)
    ours = median_ms(
        lambda: possym.profile(model, tokens, temperature=TEMPERATURE, relative=False, progress=False), tokens.device
    )
    difference = (slow.double() - fast).abs()
    shared = {"model": hub.DEFAULT, "tokens": len(tokens)}
    return [
        shared | {"what": "permute and attend again", "ms": spent, "largest_difference": difference.max().item()},
        shared | {"what": "profile, same prompt", "ms": ours, "speedup": spent / ours},
    ]


def against_float64(device: torch.device) -> float:
    """Return how far the scores of heads and of planes on a device are from the CPU's in float64."""
    chooser = torch.Generator().manual_seed(0)
    relocated = 3 * torch.randn(4, 700, 700, generator=chooser)
    keys, turned = 2 * torch.randn(2, 4, 2, 700, generator=chooser)
    own = torch.zeros(4, 1)
    heads, planes = (
        swap_scores(x, extra_logits=own, temperature=TEMPERATURE)
        for x in (relocated.double(), keys.double().mT @ turned.double())
    )
    relocated, keys, turned, own = (x.to(device) for x in (relocated, keys, turned, own))
    ours = [
        *scores_and_exclusion(relocated, own, None, TEMPERATURE)[0],
        *plane_scores(keys, turned, own, TEMPERATURE)[0],
    ]
    return max((a.cpu().double() - b).abs().max().item() for a, b in zip(ours, (*heads, *planes), strict=True))


@torch.no_grad()
def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__.split("\n")[0], "profiling.json")
    options.add_argument("--no-frequencies", action="store_true", help="leave the profile by frequency out")
    options.add_argument("--no-long", action="store_true", help="leave the prompts of 32,768 and more tokens out")
    options.add_argument("--long", type=positive, nargs="+", default=LONG, help="tokens of the long prompts")
    options.add_argument("--only-long", action="store_true", help="measure long prompts alone")
    chosen = options.parse_args()
    device = torch.device(choose_device(chosen.device))
    chooser = torch.Generator().manual_seed(0)
    long_shape = LlamaConfig(**LLAMA | dict(num_hidden_layers=2, max_position_embeddings=max(chosen.long)))
    if device.type == "cuda" and not chosen.tiny:
        models = {} if chosen.only_long else {name: random_model(config, device) for name, config in SHAPES.items()}
        tokens = {
            name: torch.randint(model.config.vocab_size, (8192,), generator=chooser).to(device)
            for name, model in models.items()
        }
        parts = [
            measure(name, models[name], tokens[name][:length], length == 2048 and not chosen.no_frequencies)
            for length in (2048, 8192)
            for name in models
        ]
        if not chosen.no_long:
            parts.append(measure_long(long_shape, chosen.long, device))
    else:
        model = hub.load(device=str(device), dtype="float32").model
        tokens = torch.randint(100, 40_000, (48 if chosen.tiny else 512,), generator=chooser).to(device)
        parts = [measure(hub.DEFAULT, model, tokens, not chosen.no_frequencies)]
        if chosen.tiny and not chosen.no_long:
            small = LlamaConfig(**LLAMA | dict(num_hidden_layers=2, hidden_size=512, vocab_size=50))
            parts.append(measure_long(small, (64, 256), device))
        if device.type == "cpu":
            parts.append((row, None) for row in against_permuting(model, tokens[: 8 if chosen.tiny else 48]))
    facts = dict(
        temperature=TEMPERATURE,
        threads=torch.get_num_threads(),
        kernels=device.type == "cuda" and kernels.triton_available(device),
        difference_from_float64=against_float64(device),
    )
    rows, calls = [], []
    for row, call in itertools.chain.from_iterable(parts):
        rows.append(row)
        calls.append(call)
        print(row, flush=True)
        write(rows, chosen.output, device, **facts)
    for row, call in zip(rows, calls, strict=True):
        if call is not None:
            row["launches"] = count_launches(call, device)
    report(rows, chosen.output, device, **facts)


if __name__ == "__main__":
    main()
