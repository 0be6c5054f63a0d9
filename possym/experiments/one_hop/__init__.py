"""One-hop prompts put to a local language model, in two forms.

The model is asked as the paper asks, with each prompt as the user's message (``form`` "chat"), and once more with the
prompt as plain text that it goes on with ("plain"): a small model may know what it cannot be made to say. Beside its
greedy reply stands which letter it finds likeliest as its first token, the forced choice, which no chatter can spoil.

Tables of the study:
- ``prompts``: kind, length, run, prompt, answer, place, items, examples: see `possym.experiments.one_hop.protocol.draw`
- ``answers``: form, kind, length, run, prompt, prompt_tokens, reply, tokens, ended, first
- ``cut``: kind, item, pieces: how the tokenizer cuts the items of one sequence, with a | between pieces
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd

from possym.errors import ConfigError, InputError
from possym.experiments.one_hop.protocol import KEYS, collect, draw, graded
from possym.models import hub
from possym.models.runners import LocalRunner
from possym.results import ExperimentConfig, Study, atomic_write, checkpoint_folder, choose_device
from possym.results.progress import tqdm
from possym.tasks.onehop import KINDS, LENGTHS, LETTERS

NAME = "one_hop"
FORMS = ("chat", "plain")
SAID = ["reply", "tokens", "ended", "first"]


@dataclass(frozen=True, kw_only=True)
class Config(ExperimentConfig):
    """Settings of the study: ``prompts`` a data set, ``runs`` data sets of every kind and length.

    ``model`` is a name for `possym.models.hub.load`, ``seed`` the number of the first run.
    """

    model: str = hub.DEFAULT
    dtype: str = "float32"
    forms: tuple[str, ...] = FORMS
    lengths: tuple[int, ...] = LENGTHS
    runs: int = 5
    prompts: int = 100
    max_new_tokens: int = 8

    PRESETS: ClassVar = {"smoke": {"lengths": (12, 16), "runs": 2, "prompts": 1}, "paper": {}}

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        super().__post_init__()
        if not self.model:
            raise ConfigError(f"model is empty: give a hub id, a folder or {hub.DEFAULT!r}")
        if self.dtype not in hub.DTYPES:
            raise ConfigError(f"dtype = {self.dtype!r}: known dtypes are {', '.join(hub.DTYPES)}")
        self.each_once("forms", known=FORMS)
        self.ascending(2, "lengths")
        self.each_at_least(1, "runs", "prompts", "max_new_tokens")


def run(config: Config) -> Study:
    """Ask the model every prompt in every form; an interrupted run goes on after the last cell of prompts."""
    device = choose_device(config.device)
    folder = checkpoint_folder(NAME, config)
    prompts = draw(config.prompts, lengths=config.lengths, runs=config.runs, seed=config.seed)
    model, tokenizer = hub.load(config.model, device=str(device), dtype=config.dtype)
    at_once = 65_536 if device.type == "cuda" else 4_096
    tables = []
    with tqdm(total=len(prompts) * len(config.forms), desc="one-hop prompts", unit="prompt") as bar:
        for form in config.forms:
            runner = LocalRunner(
                model,
                tokenizer,
                chat=form == "chat",
                max_new_tokens=config.max_new_tokens,
                tokens_at_once=at_once,
            )
            for kind, length, cell in cells(prompts):
                tables.append(asked(runner, form, cell, folder / f"{form}-{kind}-{length}.parquet"))
                bar.update(len(cell))
    return Study(
        tables={
            "prompts": prompts.drop(columns="text"),
            "answers": pd.concat(tables, ignore_index=True),
            "cut": cut(tokenizer, prompts),
        },
        manifest={"seeds": list(range(config.seed, config.seed + config.runs))},
    )


def cells(prompts: pd.DataFrame) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Yield kind, length and their prompts of all runs."""
    for (kind, length), cell in prompts.groupby(["kind", "length"], sort=False):
        yield kind, length, cell


def asked(runner: LocalRunner, form: str, cell: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Return the replies to some prompts, from their checkpoint if there is one."""
    if file.exists():
        return pd.read_parquet(file)
    texts = cell["text"].tolist()
    replies = runner.answer(texts, beginnings=list(LETTERS), progress=False)
    said = collect(cell, replies).assign(form=form, prompt_tokens=[len(runner.encode(text)) for text in texts])
    table = said[["form", *KEYS, "prompt_tokens", *SAID]].reset_index(drop=True)
    with atomic_write(file) as path:
        table.to_parquet(path, index=False)
    return table


def cut(tokenizer, prompts: pd.DataFrame) -> pd.DataFrame:
    """Return how the tokenizer cuts the items of the first prompt of each kind."""
    rows = []
    for kind in KINDS:
        items = prompts.loc[prompts["kind"] == kind, "items"].iloc[0].split()
        for item in items:
            ids = tokenizer(f" {item}", add_special_tokens=False)["input_ids"]
            rows.append((kind, item, "|".join(tokenizer.decode([token]) for token in ids)))
    return pd.DataFrame(rows, columns=["kind", "item", "pieces"])


def answers(study: Study, form: str) -> pd.DataFrame:
    """Return a study's prompts with replies in one form, graded, and whether the forced choice is right.

    Raises:
        InputError: the study was not asked in this form.
    """
    said = study.tables["answers"]
    if form not in set(said["form"]):
        raise InputError(f"form = {form!r}: this study has {', '.join(said['form'].unique())}")
    rows = said[said["form"] == form].merge(study.tables["prompts"], on=KEYS, validate="one_to_one")
    return graded(rows).assign(chosen=rows["first"] == rows["answer"].str[0])
