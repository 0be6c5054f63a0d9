"""All claims, and the studies that they are measured on."""

import importlib
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

from possym.charts.typography import typeset
from possym.errors import InputError, ResultsError, require_type
from possym.experiments.cache_plans import claims as plans
from possym.experiments.canonical import claims as canonical
from possym.experiments.claim import Claim, Measurement
from possym.experiments.generality import claims as generality
from possym.experiments.generalization import claims as generalization
from possym.experiments.language_models import claims as language_models
from possym.experiments.learning_dynamics import claims as learning
from possym.experiments.length_elsewhere import claims as length_elsewhere
from possym.experiments.mechanism import claims as mechanism
from possym.experiments.multihop_tasks import claims as tasks
from possym.experiments.one_hop import claims as onehop
from possym.experiments.real_models import claims as real
from possym.experiments.scoring import claims as heads
from possym.experiments.theory import claims as theory
from possym.experiments.two_models import claims as pair
from possym.results import Study, load_or_run, result_folder

CLAIMS: tuple[Claim, ...] = (
    *heads.CLAIMS,
    *theory.CLAIMS,
    *canonical.CLAIMS,
    *tasks.CLAIMS,
    *learning.CLAIMS,
    *generality.CLAIMS,
    *mechanism.CLAIMS,
    *generalization.CLAIMS,
    *length_elsewhere.CLAIMS,
    *language_models.CLAIMS,
    *real.CLAIMS,
    *pair.CLAIMS,
    *onehop.CLAIMS,
    *plans.CLAIMS,
)


def measure(claim: Claim, known: Mapping[str, Study]) -> Measurement:
    """Return a claim's measurement, typeset, on the study that is ``known``, else on the stored one.

    What is measured on a stored study is kept in this process until one of the study's files changes.
    """
    if claim.study in known:
        return worded(claim.measure(known[claim.study]))
    return measured_as_stored(claim, () if claim.study is None else files_of(claim.study))


@cache
def measured_as_stored(claim: Claim, files: tuple) -> Measurement:
    """Return the measurement of a claim on its stored study, whose files are these, or on the spot."""
    return worded(claim.measure() if claim.study is None else claim.measure(loaded(claim.study, files)))


@lru_cache(maxsize=1)  # the claims of a study follow each other
def loaded(name: str, files: tuple) -> Study:
    """Return the stored study, whose files are these."""
    return stored(name)


def worded(found: Measurement) -> Measurement:
    """Return a measurement whose words are typeset."""
    return found._replace(measured=typeset(found.measured), interval=typeset(found.interval))


def files_of(name: str) -> tuple[tuple[Path, int, int], ...]:
    """Return the files of the paper preset of a study, with their sizes and when they were written."""
    found = ((path, path.stat()) for path in sorted(folder_of(name).glob("*")))
    return tuple((path, state.st_size, state.st_mtime_ns) for path, state in found)


def whole(known: Mapping[str, Study]) -> list[Claim]:
    """Return the claims of every chapter whose studies are known or stored; a study still to be run has no verdicts."""
    studies_of: dict[str, set[str]] = {}
    for claim in CLAIMS:
        studies_of.setdefault(claim.chapter, set()).update({claim.study} - {None})
    there = {name for names in studies_of.values() for name in names if name in known or is_stored(name)}
    return [claim for claim in CLAIMS if studies_of[claim.chapter] <= there]


def is_stored(name: str) -> bool:
    """Return whether the paper preset of a study is stored."""
    return (folder_of(name) / "manifest.json").exists()


def folder_of(name: str) -> Path:
    """Return the folder of the paper preset of a study."""
    experiment = importlib.import_module(f"possym.experiments.{name}")
    return result_folder(experiment.NAME, experiment.Config.preset_named("paper"))


def claims_of(chapter: str | None) -> list[Claim]:
    """Return the claims of a chapter, or all."""
    require_type(chapter, (str, type(None)), "chapter")
    chosen = [claim for claim in CLAIMS if chapter in (None, claim.chapter)]
    if not chosen:
        known = sorted({claim.chapter for claim in CLAIMS})
        raise InputError(f"chapter = {chapter!r}: chapters with claims are {', '.join(known)}")
    return chosen


def given(studies: Mapping[str, Study] | None) -> dict[str, Study]:
    """Return a copy of the studies by name, or raise an InputError."""
    require_type(studies, (Mapping, type(None)), "studies")
    for name, study in (studies or {}).items():
        require_type(study, Study, f"studies[{name!r}]")
    return dict(studies or {})


def stored(name: str) -> Study:
    """Return the stored paper preset of a study, or say what to run."""
    experiment = importlib.import_module(f"possym.experiments.{name}")
    try:
        return load_or_run(experiment, experiment.Config.preset_named("paper"), "stored")
    except ResultsError as error:
        raise ResultsError(
            f"the ledger needs the stored result of {name}: {error}. To make it, run python -m "
            f"possym.experiments {name} on a machine with a CUDA device"
        ) from error
