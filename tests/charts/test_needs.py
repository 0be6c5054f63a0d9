"""Without the packages that extras bring, what needs none works, and the rest says what to install."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import possym

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("api", "models", "plots")
MISSING = {  # and what then fails, with its words
    ("altair", "ipywidgets", "vl_convert"): ("possym.charts", "enable", "charts need altair: "),
    ("vl_convert",): ("possym.profiling.charts", "heatmap", "charts need vl_convert: "),
    ("ipywidgets",): ("possym.profiling.explorer", "ProfileExplorer", "controls need ipywidgets: "),
}
# Torch and pandas, which no extra brings, are loaded once; each case has a process that begins with them alone.
WITHOUT = """
import os, sys
import pandas, torch
for missing, (module, name, _) in {cases!r}.items():
    if os.fork():
        assert os.wait()[1] == 0
        continue
    for package in missing:
        assert package not in sys.modules
        sys.modules[package] = None  # as where it is not installed
    import possym
    from possym.errors import MissingPackageError
    from possym.experiments import theory
    print(possym.scores.swap_scores(torch.zeros(3, 3)).positional.item())
    try:
        getattr(__import__(module, fromlist=[name]), name)
    except MissingPackageError as error:
        print(error, flush=True)
    os._exit(0)
"""

WITHOUT_ANY = """
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
for name in {extras!r}:
    sys.modules[name] = None
import torch
import possym
from possym import kv_cache
from possym.ensembles import gptj, llama
from possym.experiments import language_models
from possym.experiments.language_models import corpus, model
from possym.experiments.__main__ import main
from possym.models import endpoint, gguf_files, hub, random_llama
main(["theory", "--list"])
asked = endpoint.Endpoint(model="a", input_price=0.0, output_price=0.0)
tiny = gptj.GPTJEnsemble(gptj.GPTJConfig(vocabulary_size=8, layers=1, heads=1, width=8), [0])
gated = llama.LlamaEnsemble(llama.LlamaConfig(vocabulary_size=8, layers=1, heads=1, width=8), [0])
small = model.LanguageModel(model.Sizes(8, 1, 1, 8, "rope"), torch.Generator())
calls = dict(
    holding=lambda: kv_cache.holding,
    random=lambda: random_llama.save(Path("nowhere")),
    llama=lambda: model.as_llama(small),
    corpus=lambda: corpus.make([]),
    tokens=lambda: corpus.tokens_of("", ""),
    study=lambda: language_models.run(language_models.Config.preset_named("smoke")),
    export=lambda: tiny.member_to_transformers(0),
    gated=lambda: gated.member_to_transformers(0),
    hub=hub.load,
    gguf=gguf_files.need_gguf,
    profile=lambda: possym.profile(torch.nn.Linear(2, 2), [[1, 2, 3]]),
    ask=lambda: endpoint.client_of(asked, "").__enter__(),
)
modules = [entry.name for entry in walk_packages(possym.__path__, "possym.") if not entry.name.endswith("__main__")]
for name, call in calls.items() | {{name: lambda name=name: import_module(name) for name in modules}}.items():
    try:
        call()
    except possym.PossymError as error:
        print(name, str(error).partition(": ")[2])
    except Exception as error:
        print(name, repr(error))
"""


def test_what_is_missing_is_named_with_the_extra_that_brings_it():
    command = [sys.executable, "-c", WITHOUT.format(cases=MISSING)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    install = "pip install '.[plots]' in the checkout of possym\n"
    assert out == "".join(f"1.0\n{said}{install}" for *_, said in MISSING.values())


def test_every_module_and_every_door_names_the_extra_that_it_lacks():
    with (ROOT / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["optional-dependencies"]
    needs = {extra: {re.split("[<>=]", text)[0].replace("-", "_") for text in declared[extra]} for extra in EXTRAS}
    script = WITHOUT_ANY.format(extras=["vl_convert", "tokenizers", "huggingface_hub", *set().union(*needs.values())])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if "pip install" in line or "Error" in line)
    commands = {extra: f"pip install '.[{extra}]' in the checkout of possym" for extra in EXTRAS}
    assert set(said.values()) == set(commands.values()), said
    doors = {name: said.pop(name) for name in [*said] if "." not in name}
    assert doors.pop("ask") == commands["api"]
    assert set(doors.values()) == {commands["models"]} and len(doors) == 11
    assert {name for name, what in said.items() if what == commands["models"]} == {
        "possym.kv_cache.held", "possym.monitor", "possym.profiling.monitor",
    }  # fmt: skip


def test_away_from_a_checkout_the_installed_package_is_named(tmp_path):
    shutil.copy(ROOT / "possym/errors.py", tmp_path)
    script = "import errors; print(errors.install_command('plots'))"
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert out == "pip install 'possym[plots]'\n"


def test_every_module_takes_what_draws_from_the_room_that_names_the_extra():
    home = Path(possym.__file__).parent
    bare = re.compile(r"^(import|from) (altair|ipywidgets|vl_convert)\b", re.MULTILINE)
    modules = [path for path in home.rglob("*.py") if path.parent != home / "charts"]
    assert [str(path) for path in modules if bare.search(path.read_text(encoding="utf-8"))] == []
