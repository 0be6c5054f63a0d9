"""Text to learn language from: the Python source, and the English docstrings, of pinned packages.

``python -m possym.experiments.language_models.corpus FOLDER`` fetches the wheels that `PACKAGES` names through pip,
checks their hashes, drops what stands twice, splits by file, trains a byte-level BPE and stores token arrays. Nothing
of the packages is redistributed; the same wheels give the same tokens on every machine.

- `read_wheels`: (name, text) of every Python file; `docstrings` the prose in one of them;
- `without_repeats`: the texts without blocks of lines that stood before;
- `Corpus`: tokens to train on, tokens held out, and the tokenizer; `make` makes one, `load` reads it again.
"""

import ast
import hashlib
import json
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from possym.errors import ConfigError, ResultsError, needed
from possym.results import atomic_write, writing
from possym.results.progress import tqdm

PACKAGES = Path(__file__).with_name("packages.json")
KINDS = ("source", "docstrings")
VOCABULARY = 8192
FEWEST = 257  # tokens of a vocabulary: one a byte, and the end
MOST = 2**15  # as tokens are stored as int16
END = "<|end|>"
BLOCK = 160  # characters from which a block of lines that stood before is dropped
HELD_OUT = 50  # of so many files one is held out
AT_ONCE = 512  # texts that are cut into tokens together


@dataclass(frozen=True)
class Corpus:
    """Token ids (N,) to train on and held out, the tokenizer's JSON, and the SHA-256 of all three."""

    train: Tensor
    held_out: Tensor
    tokenizer: str
    sha256: str


def fetch(folder: Path) -> list[Path]:
    """Return the wheels that `PACKAGES` names, downloaded by pip into ``folder`` where they are not there.

    Raises:
        ResultsError: pip could not fetch them, or a file does not match its hash.
    """
    packages = json.loads(PACKAGES.read_text(encoding="utf-8"))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / package["file"] for package in packages]
    if not all(path.exists() for path in paths):
        wanted = folder / "requirements.txt"
        lines = [f"{p['name']}=={p['version']} --hash=sha256:{p['sha256']}" for p in packages]
        wanted.write_text("\n".join(lines) + "\n", encoding="utf-8")
        platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28)]
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
        command += ["--python-version=3.11", "--implementation=cp", *platforms, "--platform=manylinux2014_x86_64"]
        command += ["--disable-pip-version-check", "--quiet", "--requirement", str(wanted), "--dest", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ResultsError(f"pip could not fetch the packages of {PACKAGES.name}: {done.stderr.strip()[-500:]}")
    for package, path in zip(packages, paths, strict=True):
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != package["sha256"]:
            raise ResultsError(f"{path} is not the file that {PACKAGES.name} names: delete it to fetch it again")
    return paths


def read_wheels(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield name and text of every Python file of some wheels, in the order of their names."""
    for path in sorted(paths):
        with zipfile.ZipFile(path) as wheel:
            for name in sorted(wheel.namelist()):
                if name.endswith(".py"):
                    text = wheel.read(name).decode("utf-8", errors="replace")
                    yield f"{path.name}/{name}", text.replace("\r\n", "\n")


def docstrings(text: str) -> str:
    """Return the docstrings of a file of Python source, an empty line between them; of no Python, nothing.

    >>> docstrings('def f():\\n    "Say one thing in words that are long enough to count."')
    'Say one thing in words that are long enough to count.'
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the packages' own code warns of
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return ""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return "\n\n".join(prose for prose in found if prose and len(prose) >= 40)


def without_repeats(files: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield files without the blocks of lines, set apart by empty ones, that stood in a file before.

    >>> long = "x = 1  # " + "a" * 200
    >>> [text for _, text in without_repeats([("a", long), ("b", long + "\\n\\ny = 2")])]
    ['x = 1  # aaa..., 'y = 2']
    """
    seen = set()
    for name, text in files:
        kept = []
        for block in text.split("\n\n"):
            if len(block) >= BLOCK:
                digest = hashlib.sha256(block.strip().encode()).digest()
                if digest in seen:
                    continue
                seen.add(digest)
            kept.append(block)
        if whole := "\n\n".join(kept).strip():
            yield name, whole


def is_held_out(name: str) -> bool:
    """Return whether a file is held out, by its name: the same files on every machine."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % HELD_OUT == 0


def make(files: Iterable[tuple[str, str]], kind: str = "source", *, vocabulary: int = VOCABULARY) -> Corpus:
    """Return the corpus that some files of Python source make.

    Args:
        files: (name, text) of each.
        kind: ``"source"`` for the text as it is, ``"docstrings"`` for its prose.
        vocabulary: tokens of the byte-level BPE, which is trained on every fourth training file.

    Raises:
        ConfigError: unknown kind, or files too few for a corpus.
    """
    with needed("a corpus needs", "models"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if kind not in KINDS:
        raise ConfigError(f"corpus = {kind!r}: known corpora are {', '.join(KINDS)}")
    if kind == "docstrings":
        files = ((name, docstrings(text)) for name, text in files)
    texts = list(without_repeats(files))
    parts = {held: [text for name, text in texts if is_held_out(name) == held] for held in (False, True)}
    if not parts[False] or not parts[True]:
        raise ConfigError(f"{len(texts)} files make no corpus: a part is held out, give a few hundred")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(parts[False][::4], trainer)
    train, held_out = (encode(tokenizer, parts[held]) for held in (False, True))
    words = tokenizer.to_str()
    digest = hashlib.sha256(words.encode())
    for tokens in (train, held_out):
        digest.update(tokens.numpy().tobytes())
    return Corpus(train, held_out, words, digest.hexdigest())


def encode(tokenizer, texts: list[str]) -> Tensor:
    """Return the token ids of texts one after the other, the end token after each, as int16."""
    end, rows = tokenizer.token_to_id(END), []
    for start in tqdm(range(0, len(texts), AT_ONCE), desc="tokens", unit="batch", leave=False):
        for line in tokenizer.encode_batch(texts[start : start + AT_ONCE]):
            rows.append(torch.tensor([*line.ids, end], dtype=torch.int16))
    return torch.cat(rows)


def tokens_of(tokenizer: str, text: str) -> tuple[list[int], list[str]]:
    """Return the token ids of a text, the end token that stands before every file first, and what each token says."""
    with needed("a corpus needs", "models"):
        from tokenizers import Tokenizer

    words = Tokenizer.from_str(tokenizer)
    ids = [words.token_to_id(END), *words.encode(text).ids]
    return ids, [END, *(words.decode([token]) for token in ids[1:])]


def save(corpus: Corpus, path: Path) -> None:
    """Store a corpus as one safetensors file, whole or not at all."""
    notes = {"tokenizer": corpus.tokenizer, "sha256": corpus.sha256}
    with atomic_write(path) as part:
        save_file({"train": corpus.train, "held_out": corpus.held_out}, part, metadata=notes)


def load(path: Path) -> Corpus:
    """Read a corpus that `save` stored.

    Raises:
        ResultsError: no such file, or no corpus in it; the message says how to make it.
    """
    advice = f"make it with python -m possym.experiments.language_models.corpus {path.parent}"
    if not path.is_file():
        raise ResultsError(f"no corpus in {path}: {advice}")
    try:
        with safe_open(path, framework="pt") as file:
            notes = file.metadata()
            tokens = {name: file.get_tensor(name) for name in ("train", "held_out")}
        return Corpus(tokens["train"], tokens["held_out"], notes["tokenizer"], notes["sha256"])
    except (SafetensorError, KeyError, TypeError) as error:
        raise ResultsError(f"{path} is not a whole corpus ({error}): delete it, and {advice}") from error
