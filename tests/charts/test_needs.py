"""Without the packages that draw, what needs none works, and the rest says what to install."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import possym

WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None  # as where it is not installed
import torch
import possym
from possym.errors import MissingPackageError
from possym.experiments import theory
print(possym.scores.swap_scores(torch.zeros(3, 3)).positional.item())
try:
    from {module} import {name}
except MissingPackageError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("missing", "module", "name", "said"),
    [
        (["altair", "ipywidgets", "vl_convert"], "possym.charts", "enable", "charts need altair: "),
        (["vl_convert"], "possym.profiling.charts", "heatmap", "charts need vl_convert: "),
        (["ipywidgets"], "possym.profiling.explorer", "ProfileExplorer", "controls need ipywidgets: "),
    ],
)
def test_what_is_missing_is_named_with_the_extra_that_brings_it(missing, module, name, said):
    script = WITHOUT.format(missing=missing, module=module, name=name)
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out == f"1.0\n{said}pip install '.[plots]' in the checkout of possym\n"


def test_every_module_takes_what_draws_from_the_room_that_names_the_extra():
    home = Path(possym.__file__).parent
    bare = re.compile(r"^(import|from) (altair|ipywidgets|vl_convert)\b", re.MULTILINE)
    modules = [path for path in home.rglob("*.py") if path.parent != home / "charts"]
    assert [str(path) for path in modules if bare.search(path.read_text(encoding="utf-8"))] == []
