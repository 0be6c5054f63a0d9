"""What watching the heads costs a training: the callback at its default schedule, in a real transformers Trainer.

A small Llama trains on pieces of Python's own documentation, one byte a token, once as it is and once with
`possym.profiling.monitor.HeadScoreCallback` on eight held-out pieces, in alternation. A row is a pair of runs:

- *scoring_of_training*: seconds in the callback, set-up included, over seconds in updates, as the callback counts them;
- *wall_with*, *wall_without*: seconds of ``trainer.train()`` by the clock, with what the machine did besides;
- *same_weights*: whether both runs end with the same weights, bit for bit. On a GPU two runs without the callback do
  not either, unless PyTorch is told to use deterministic algorithms.
"""

import tempfile
import time
from importlib.metadata import version

import torch
from common import parser, report, synchronize
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments

from possym.profiling.monitor import HeadScoreCallback
from possym.results import choose_device
from possym.tasks.text import byte_pieces

SHAPES = {
    "cpu": dict(width=64, layers=4, heads=4, length=64, batch=16, updates=(300, 600)),
    "cuda": dict(width=512, layers=8, heads=8, length=256, batch=64, updates=(500, 2000)),
    "tiny": dict(width=32, layers=2, heads=2, length=32, batch=4, updates=(20,)),
}
REPEATS = 3


def small_llama(width: int, layers: int, heads: int, length: int) -> nn.Module:
    """Return a Llama over bytes with random weights; the same numbers each time."""
    torch.manual_seed(0)
    shape = dict(hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers, num_attention_heads=heads)
    plain = dict(max_position_embeddings=length, bos_token_id=None, eos_token_id=None)
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, **shape, **plain))


def train(model: nn.Module, pieces: Tensor, batch: int, updates: int, device: torch.device, *callbacks) -> float:
    """Train and return the seconds it took."""
    with tempfile.TemporaryDirectory() as folder:
        settings = dict(per_device_train_batch_size=batch, max_steps=updates, learning_rate=1e-3, warmup_steps=20)
        quiet = dict(save_strategy="no", disable_tqdm=True, report_to="none", use_cpu=device.type == "cpu")
        data = [{"input_ids": piece, "labels": piece} for piece in pieces]
        arguments = TrainingArguments(folder, bf16=device.type == "cuda", **settings, **quiet)
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=list(callbacks))
        trainer.remove_callback(PrinterCallback)
        synchronize(device)
        start = time.perf_counter()
        trainer.train()
        synchronize(device)
        return time.perf_counter() - start


def pair(shape: dict, updates: int, device: torch.device) -> dict:
    """Return one row: the same training without and with the callback."""
    sizes = [shape[name] for name in ("width", "layers", "heads", "length")]
    pieces = byte_pieces(shape["length"], generator=torch.Generator().manual_seed(0))
    plain, watched = small_llama(*sizes), small_llama(*sizes)
    without = train(plain, pieces[8:], shape["batch"], updates, device)
    monitor = HeadScoreCallback(pieces[:8])
    with_it = train(watched, pieces[8:], shape["batch"], updates, device, monitor)
    same = all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    return {
        "updates": updates,
        "points": int(monitor.table.step.nunique()),
        "ms_an_update": 1e3 * monitor.seconds["training"] / updates,
        "scoring_of_training": monitor.seconds["scoring"] / monitor.seconds["training"],
        "wall_without": without,
        "wall_with": with_it,
        "same_weights": same,
    }


def main() -> None:
    """Run the benchmark."""
    chosen = parser(__doc__.split("\n")[0], "monitor.json").parse_args()
    device = torch.device(choose_device(chosen.device))
    shape = SHAPES["tiny" if chosen.tiny else device.type]
    train(small_llama(32, 1, 1, 32), byte_pieces(32)[:64], 4, 3, device)  # so that no pair pays for the first use
    rows = [pair(shape, updates, device) for updates in shape["updates"] for _ in range(1 if chosen.tiny else REPEATS)]
    sizes = {name: value for name, value in shape.items() if name != "updates"}
    facts = dict(shape=sizes, threads=torch.get_num_threads(), accelerate=version("accelerate"))
    report(rows, chosen.output, device, **facts)


if __name__ == "__main__":
    main()
