"""Studies run into a store and a cache of trained models that tests have to themselves, or interrupted."""

from collections.abc import Callable, Iterator
from types import ModuleType

import pandas as pd
import pytest

from possym import results
from possym.results import ExperimentConfig


def smoke_run(study: ModuleType, folders: pytest.TempPathFactory, **settings) -> Iterator[tuple]:
    """Yield the configuration and its result, stored and loaded again, while the store stays the one in use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSSYM_RESULTS", str(folders.mktemp("results")))
        patch.setenv("POSSYM_CACHE", str(folders.mktemp("cache")))
        config = study.Config.preset_named("smoke", device="cpu", **settings)
        results.load_or_run(study, config, "always")
        yield config, results.load_or_run(study, config, "stored")


def interrupt(study: ModuleType, config: ExperimentConfig, name: str, stops: Callable[..., bool]) -> None:
    """Run a study until it calls one of its module's functions with what ``stops`` says, as Ctrl-C would end it."""
    function = getattr(study, name)

    def watched(*arguments):
        if stops(*arguments):
            raise KeyboardInterrupt
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, name, watched)
        with pytest.raises(KeyboardInterrupt):
            study.run(config)


def same_tables(one: results.Study, other: results.Study) -> None:
    """Compare all tables to the last bit, but for those of seconds."""
    for name in one.tables.keys() - {"timing"}:
        pd.testing.assert_frame_equal(one.tables[name], other.tables[name], check_exact=True)
