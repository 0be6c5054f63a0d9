"""Synthetic tasks: each draws a balanced `Batch`, knows the path to its answers and solves itself."""

from .batch import Batch
from .canonical import IndexTask, PartialInductionTask, RetrievalTask
from .mixed import MixedTask
from .multihop import LetterTask, NumberTask
from .onehop import OneHop, OneHopTask

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
