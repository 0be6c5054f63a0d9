"""Run both constructions on CPU and on CUDA, on the same sequences, and require the same answers.

    python benchmarks/theory_devices.py [--sequences 100000] [--output result.json]

Prints one JSON object: per task and hop count, whether the two devices' tokens agree at every place and the
answers are right, and the seconds each device took.
"""

import argparse
import json
import time

import torch
from common import file_to_write, positive

from possym.results import environment
from possym.tasks import LetterTask, NumberTask
from possym.theory import letter_head, number_head, stack


def answers(model: torch.nn.Module, tokens: torch.Tensor, device: str) -> tuple[torch.Tensor, float]:
    """Return the tokens that the last layer reads out at every place, on the CPU, and the seconds it took."""
    model, start = model.to(device), time.perf_counter()
    found = torch.cat([model(part.to(device)).cpu() for part in tokens.split(5000)])
    return found, time.perf_counter() - start


def main() -> None:
    """Compare the devices on number and letter tasks, 1 to 4 hops."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=positive, default=20_000)
    parser.add_argument("--output", type=file_to_write)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this comparison needs a CUDA device, and torch finds none")
    rows = []
    for name, task, head in (
        ("number", NumberTask(), number_head(NumberTask().vocabulary, 0.8)),
        ("letter", LetterTask(), letter_head(LetterTask().vocabulary, 0.0027)),
    ):
        for hops in (1, 2, 3, 4):
            batch = task.sample(options.sequences, hops=hops, generator=torch.Generator().manual_seed(hops))
            model = stack(head, hops, 4)
            on_cpu, cpu_seconds = answers(model, batch.tokens, "cpu")
            on_cuda, cuda_seconds = answers(model, batch.tokens, "cuda")
            rows.append(
                {
                    "task": name,
                    "hops": hops,
                    "sequences": options.sequences,
                    "same_answers": torch.equal(on_cpu[:, -1], on_cuda[:, -1]),
                    "same_everywhere": torch.equal(on_cpu, on_cuda),
                    "right": torch.equal(on_cuda[:, -1], batch.answer),
                    "cpu_seconds": round(cpu_seconds, 3),
                    "cuda_seconds": round(cuda_seconds, 3),
                }
            )
    result = {"rows": rows, "environment": environment("cuda")}
    text = json.dumps(result, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    assert all(row["same_answers"] and row["right"] for row in rows), "CPU and CUDA disagree, or are wrong"


if __name__ == "__main__":
    main()
