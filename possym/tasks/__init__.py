"""Synthetic tasks: each draws a balanced `Batch`, knows the path to its answers and solves itself."""

from .batch import Batch
from .canonical import IndexTask, PartialInductionTask, RetrievalTask
from .multihop import LetterTask, NumberTask

__all__ = ["Batch", "IndexTask", "LetterTask", "NumberTask", "PartialInductionTask", "RetrievalTask"]
