"""A sweep's file: which points it means, and what is refused before anything runs."""

import json

import pytest

from possym import sweeps
from possym.errors import ConfigError

CHAPTER = """---
jupytext: {text_representation: {extension: .md, format_name: myst}}
---

```{code-cell} ipython3
:tags: [parameters]
preset = "paper"
compute = "stored"
seed = 0
rate = 0.5
model = ""  # a hub id
quick = False
pairs = [8, 16]
anything = None
```
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Read a sweep's text in a folder that has one chapter."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters/01-one.md").write_text(CHAPTER)
    (tmp_path / "prepare.py").write_text("")

    def call(text, name="mine.yaml"):
        (tmp_path / name).write_text(text)
        return sweeps.read(tmp_path / name)

    return call


def test_every_combination_is_a_point_named_by_its_parameters(read):
    sweep = read("chapter: 01-one\nparameters:\n  model: [a/b, c]\n  seed: [0, 1]\n")
    assert sweep.points == {
        "seed=0,model=a-b": {"seed": 0, "model": "a/b"},
        "seed=0,model=c": {"seed": 0, "model": "c"},
        "seed=1,model=a-b": {"seed": 1, "model": "a/b"},
        "seed=1,model=c": {"seed": 1, "model": "c"},
    }
    assert (sweep.name, str(sweep.chapter), sweep.prepare) == ("mine", "chapters/01-one.md", None)
    assert sweep.resources == {"cores": 1, "gpus": 0, "memory": "4GB"}


def test_values_of_every_kind_are_kept(read):
    text = "chapter: 01-one\nparameters: {rate: [1, 0.25], quick: [true], pairs: [[8], [8, 64]], anything: [x, 3]}\n"
    found = list(read(text).points.items())
    assert found[0] == (
        "rate=1,quick=True,pairs=8,anything=x",
        {"rate": 1, "quick": True, "pairs": [8], "anything": "x"},
    )
    assert found[-1][0] == "rate=0.25,quick=True,pairs=8-64,anything=3"


def test_odd_texts_are_kept_and_named_apart(read):
    texts = ['it\'s "a" model', "dé/jà", "{x} $HOME", ""]
    found = read(f"chapter: 01-one\nparameters: {{model: {json.dumps(texts)}}}\n").points
    assert [point["model"] for point in found.values()] == texts
    assert list(found) == ["model=it-s-a-model", "model=d-j", "model=x-HOME", "model="]


def test_the_order_of_the_file_does_not_change_names(read):
    one = read("chapter: 01-one\nparameters: {seed: [1], model: [x]}\n")
    other = read("chapter: 01-one\nparameters: {model: [x], seed: [1]}\n")
    assert [*one.points] == [*other.points] == ["seed=1,model=x"]


def test_long_names_are_cut_and_stay_apart(read):
    long = "x" * 200
    names = [*read(f"chapter: 01-one\nparameters: {{model: [{long}a, {long}b]}}\n").points]
    assert len(set(names)) == 2
    assert all(len(name) <= 150 for name in names)


def test_numbers_keep_their_signs_in_names(read):
    found = read("chapter: 01-one\nparameters: {rate: [-1, 1]}")
    assert list(found.points) == ["rate=-1", "rate=1"]


def test_what_a_point_needs_and_what_comes_before(read):
    sweep = read(
        "chapter: 01-one\nabout: >\n  Two\n  lines.\nprepare: prepare.py\nparameters: {seed: [1]}\n"
        "resources: {cores: 2, gpus: 1, memory: 800MB}\n"
    )
    assert sweep.resources == {"cores": 2, "gpus": 1, "memory": "800MB"}
    assert (sweep.about, str(sweep.prepare)) == ("Two lines.", "prepare.py")


REFUSED = {
    "- a": "give a mapping of chapter, parameters",
    "chapter: [": "is no YAML",
    "chapter: 01-one": "has no 'parameters'",
    "chapter: 02-two\nparameters: {seed: [1]}": "chapter = '02-two': known chapters are 01-one",
    "chapter: 01-one\nparameters: {sed: [1]}": "has 'sed': known are preset, compute, seed, rate, model, quick",
    "chapter: 01-one\nparameters: {}": "0 points",
    "chapter: 01-one\nparameters: {seed: []}": "seed = []: give a list of values",
    "chapter: 01-one\nparameters: {seed: 1}": "seed = 1: give a list of values",
    "chapter: 01-one\nparameters: [seed]": "parameters is ['seed']: give a mapping",
    "chapter: 01-one\nparameters: {seed: [a]}": "seed has 'a', of type str: give values of type int",
    "chapter: 01-one\nparameters: {rate: [1e-5]}": "of type str: give values of type float, such as 1.0e-5",
    "chapter: 01-one\nparameters: {rate: [.nan]}": "rate has nan: give numbers, texts",
    "chapter: 01-one\nparameters: {pairs: [[!!set {a}]]}": "pairs has [{'a'}]: give numbers, texts",
    "chapter: 01-one\nparameters: {anything: [{1: a}]}": "anything has {1: 'a'}: give numbers, texts",
    "chapter: 01-one\nparameters: {seed: [true]}": "seed has True, of type bool",
    "chapter: 01-one\nparameters: {seed: [1, 2, 1]}": "seed has 1 twice",
    "chapter: 01-one\nparameters: {model: [a/b, a-b]}": "two points would both be called model=a-b",
    "chapter: 01-one\nparameters: {model: [a, A]}": "two points would both be called model=A",
    f"chapter: 01-one\nparameters: {{seed: {[*range(101)]}, rate: {[*range(100)]}}}": "10100 points: give 1 to",
    "chapter: 01-one\nparameters: {seed: [1]}\nresource: {}": "has 'resource': known are chapter, parameters",
    "chapter: 01-one\nparameters: {seed: [1]}\nresources: {cpus: 1}": "has 'cpus': known are cores, gpus, memory",
    "chapter: 01-one\nparameters: {seed: [1]}\nresources: {cores: 0}": "cores = 0: give a whole number from 1",
    "chapter: 01-one\nparameters: {seed: [1]}\nresources: {gpus: true}": "gpus = True: give a whole number from 0",
    "chapter: 01-one\nparameters: {seed: [1]}\nresources: {memory: 4}": "memory = 4: give a size such as 4GB",
    "chapter: 01-one\nparameters: {seed: [1]}\nprepare: gone.py": "prepare = 'gone.py': give the path",
    "chapter: 01-one\nparameters: {seed: [1]}\nabout: [1]": "about = [1]: give a text",
    "chapter: 01-one\nparameters: {seed: [1], seed: [2]}": "a key is given twice",
    "chapter: 01-one\nparameters: {seed: [-1]}": "seed has -1: give whole numbers from 0",
    f"chapter: 01-one\nparameters: {{seed: [{2**30}]}}": "seed has 1073741824: give whole numbers from 0",
    "[" * 5000: "is no YAML: ",
    "chapter: 01-one\nparameters: {preset: [smoke, large]}": "preset has 'large': known are smoke, paper",
    "chapter: 01-one\nparameters: {compute: [never]}": "compute has 'never': known are stored, auto, always",
}


@pytest.mark.parametrize("text", REFUSED, ids=REFUSED.values())
def test_bad_files_are_refused(text, read):
    with pytest.raises(ConfigError) as error:
        read(text)
    assert REFUSED[text] in str(error.value)
    assert "mine.yaml" in str(error.value)


def test_a_name_that_is_no_folder_and_a_missing_file_are_refused(read, tmp_path):
    for name in ("my sweep.yaml", "...yaml", "-x.yaml"):
        with pytest.raises(ConfigError, match="becomes a folder's"):
            read("chapter: 01-one\nparameters: {seed: [1]}\n", name)
    with pytest.raises(ConfigError, match=r"gone\.yaml cannot be read"):
        sweeps.read(tmp_path / "gone.yaml")
