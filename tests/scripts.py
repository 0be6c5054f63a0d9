"""Modules that lie outside the library, such as the book's extensions, for tests that call their functions."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def load_script(name: str) -> ModuleType:
    """Return a module of ``_ext`` by its name, without a place among the imported ones."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"_ext/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
