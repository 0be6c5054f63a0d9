"""Synthetic tasks: each draws a balanced `Batch`, knows the path to its answers and solves itself."""

from possym.tasks.batch import Batch
from possym.tasks.canonical import IndexTask, PartialInductionTask, RetrievalTask
from possym.tasks.mixed import MixedTask
from possym.tasks.number_and_letter import LetterTask, NumberTask
from possym.tasks.onehop import OneHop, OneHopTask

__all__ = [
    "Batch",
    "IndexTask",
    "LetterTask",
    "MixedTask",
    "NumberTask",
    "OneHop",
    "OneHopTask",
    "PartialInductionTask",
    "RetrievalTask",
]
