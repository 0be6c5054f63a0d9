"""Options that several subcommands share."""

import argparse

MODEL = "a folder, a .gguf file, a name such as SmolLM2-135M-Instruct, or a hub id"


def add_running(made: argparse.ArgumentParser) -> None:
    """Add the options that say how a model is run."""
    made.add_argument("--device", default="auto", help="auto (standard: a GPU where there is one), cpu, cuda:1, …")
    made.add_argument("--dtype", default="auto", help="auto (standard: float32 on a CPU), float32, bfloat16 or float16")
    made.add_argument("--quiet", action="store_true", help="show no progress")


def add_scoring(made: argparse.ArgumentParser, about: str, required: bool) -> None:
    """Add the options that say how models are profiled."""
    made.add_argument(
        "--prompts",
        required=required,
        metavar="FILE",
        help=f"{about}a .txt file with a prompt on each line; a .jsonl file with a string or a list of token ids on "
        'each line, or an object with "text", "input_ids" or a chat in "messages"; or - for lines of standard input',
    )
    made.add_argument(
        "--out",
        required=required,
        metavar="FOLDER",
        help=f"where {'the profile' if required else 'profiles'} and what is done so far are kept",
    )
    add_running(made)
    made.add_argument("--layers", metavar="0,3", help="score these layers alone, counted from 0")
    made.add_argument(
        "--query",
        default="last",
        help="which token looks: last (standard), all, or positions such as 5,7 or --query=-2",
    )
    made.add_argument(
        "--blocks", choices=["tokens", "sentences"], default="tokens", help="what changes places (standard: tokens)"
    )
    made.add_argument("--frequencies", action="store_true", help="score every RoPE frequency of every head too")
    made.add_argument(
        "--hold", choices=["first"], help="keep the first token in place: many models rest attention there"
    )
