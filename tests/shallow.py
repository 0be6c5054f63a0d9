"""A cache in which the default model has a few of its thirty layers, whose forward passes would take minutes."""

import json

import pytest

from possym.models import hub
from possym.results import cache_root, sha256

LAYERS = 4


@pytest.fixture(scope="session")
def shallow(tmp_path_factory):
    """A cache with the first `LAYERS` of the default model, as its conversion leaves it, and with what studies keep."""
    cache = tmp_path_factory.mktemp("cache")
    model, tokenizer = hub.load(device="cpu")
    model.model.layers = model.model.layers[:LAYERS]
    model.config.num_hidden_layers = LAYERS
    folder = cache / hub.default_folder().name
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    said = {"sha256": {file.name: sha256(file) for file in folder.iterdir()}}
    (folder / "possym.json").write_text(json.dumps(said))
    for name in ("ensembles", "language_models"):
        (cache_root() / name).mkdir(exist_ok=True)
        (cache / name).symlink_to(cache_root() / name)
    return cache
