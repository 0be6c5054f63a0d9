"""A study's smoke preset, run into a store and a cache of trained models that a module's tests have to themselves."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from possym import results


def smoke_run(study: ModuleType, folders: pytest.TempPathFactory, **settings) -> Iterator[tuple]:
    """Yield the configuration and its result, stored and loaded again, while the store stays the one in use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSSYM_RESULTS", str(folders.mktemp("results")))
        patch.setenv("POSSYM_CACHE", str(folders.mktemp("cache")))
        config = study.Config.preset_named("smoke", device="cpu", **settings)
        results.load_or_run(study, config, "always")
        yield config, results.load_or_run(study, config, "stored")
