"""Which heads may forget: plans for the key–value cache, one entry per key head, and what they cost.

- `measure` reads every key head's kind, distance and attention from a model's own passes; `keep` makes a plan from
  these, or from a `possym.Profile`, by one of `RULES`; `CachePlan` is the plan;
- `applied` runs any model that possym reads under a plan, by a mask for each head; `holding` gives models of the Llama
  kind a cache that really holds less;
- `possym.kv_cache.evaluation` measures the loss by position, the copying of repeated tokens and the recall of a needle;
- `possym.kv_cache.files` writes and reads plans: JSON, DuoAttention's two files, a configuration of transformers.

A head that forgets keeps the first ``sink`` tokens and the latest ``window``, the query's own among them.
"""

from importlib import import_module

from possym.kv_cache.applied import applied
from possym.kv_cache.heads import Heads, measure, try_each
from possym.kv_cache.plan import CachePlan
from possym.kv_cache.rules import RULES, keep

__all__ = ["RULES", "CachePlan", "Heads", "applied", "holding", "keep", "measure", "try_each"]


def __getattr__(name: str):
    if name == "holding":  # its cache is a class of transformers, which plans and rules can do without
        return import_module("possym.kv_cache.held").holding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
