"""A corpus holds every file once, and the same on every machine."""

import json
import runpy
import sys
import zipfile

import pytest

from possym import ConfigError, ResultsError
from possym.experiments.language_models import corpus
from possym.experiments.language_models.model import load_model

FILES = [
    (f"m{n}.py", f'def f{n}():\n    "Return {n} and say so in more than forty characters."\n    return {n}\n')
    for n in range(300)
]


def test_a_corpus_is_split_by_file_and_read_back(tmp_path):
    made = corpus.make(FILES, vocabulary=300)
    corpus.save(made, tmp_path / "source.safetensors")
    again = corpus.load(tmp_path / "source.safetensors")
    assert again.sha256 == made.sha256 == corpus.make(FILES, vocabulary=300).sha256
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(again.tokenizer)
    texts = tokenizer.decode(again.held_out.tolist(), skip_special_tokens=False).split(corpus.END)[:-1]
    assert texts == [text.strip() for name, text in FILES if corpus.is_held_out(name)] and 1 < len(texts) < 20
    assert len(again.train) > 20 * len(again.held_out)


def test_blocks_that_stood_before_are_dropped():
    licence = "# " + "may be used by all " * 12
    found = list(corpus.without_repeats([("a", f"{licence}\n\nx = 1"), ("b", f"{licence}\n\nx = 1"), ("c", licence)]))
    assert found == [("a", f"{licence}\n\nx = 1"), ("b", "x = 1")]


def test_docstrings_of_every_kind_are_found():
    long = "words enough to be counted as prose by the corpus"
    method = f'    async def f(self):\n        """Method: {long}."""\n        "no"\n'
    text = f'"""Module: {long}."""\nclass A:\n    """Class: {long}."""\n{method}'
    assert [line.split(":")[0] for line in corpus.docstrings(text).split("\n\n")] == ["Module", "Class", "Method"]
    assert corpus.docstrings("def f(:") == ""


def test_a_wheel_that_was_changed_is_refused(tmp_path, monkeypatch):
    wheel = tmp_path / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("small/b.py", "b = 1\r\n")
        file.writestr("small/a.py", "a = 1\n")
        file.writestr("small/data.txt", "no")
    packages = tmp_path / "packages.json"
    digest = __import__("hashlib").sha256(wheel.read_bytes()).hexdigest()
    row = {"name": "small", "version": "1.0", "file": wheel.name, "sha256": digest}
    packages.write_text(json.dumps([row]))
    monkeypatch.setattr(corpus, "PACKAGES", packages)
    assert list(corpus.read_wheels(corpus.fetch(tmp_path))) == [
        (f"{wheel.name}/small/a.py", "a = 1\n"), (f"{wheel.name}/small/b.py", "b = 1\n")
    ]  # fmt: skip
    wheel.write_bytes(wheel.read_bytes() + b"more")
    with pytest.raises(ResultsError, match="is not the file that packages.json names"):
        corpus.fetch(tmp_path)


def damaged(path):
    (path / "damaged.safetensors").write_bytes(b"no corpus")
    return path / "damaged.safetensors"


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda path: corpus.load(damaged(path)), ResultsError, "is not a whole corpus .* delete it, and make it with"),
        (lambda path: load_model(damaged(path)), ResultsError, "holds no weights of this study .* delete it, and run"),
        (
            lambda path: corpus.load(path / "none.safetensors"),
            ResultsError,
            "make it with python -m possym.experiments",
        ),
        (lambda path: corpus.make(FILES, "poems"), ConfigError, "known corpora are source, docstrings"),
        (lambda path: corpus.make(FILES[:1]), ConfigError, "give a few hundred"),
    ],
)
def test_what_cannot_be_made_is_refused(call, error, message, tmp_path):
    with pytest.raises(error, match=message):
        call(tmp_path)


def test_packages_are_named_with_hashes():
    packages = json.loads(corpus.PACKAGES.read_text())
    assert len(packages) > 20 and all(len(package["sha256"]) == 64 for package in packages)


def test_the_command_says_what_is_wrong_and_no_more(tmp_path, monkeypatch, capsys):
    """No warning, which the tests would raise, and no traceback: a folder that is a file is named."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["corpus", str(tmp_path / "file")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("possym.experiments.language_models.corpus", run_name="__main__")
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"ResultsError: {tmp_path / 'file' / 'wheels'} cannot be written")
