"""The theory of both papers as heads that run and statements that are checked.

- `heads`: the constructions, as real attention heads through `possym.rope`.
- `inputs`: the inputs on which heads are tried.
- `functions`: what they compute, defined without attention.
- `discrepancy`: exact discrepancy and margins over all inputs, softmax temperatures, floating point.
- `answer_weight`: the answer's weight by its position.
- `exclusion`: the exclusion principle enumerated, its tightness, scores against definition.
- `check`: the class of a check, and the registry of all checks.
- `statements_p1`, `statements_p2`: the checks, each named after its statement.
- `audit`: every theorem, lemma and remark, each with a verdict that is computed.
"""

from possym.theory.answer_weight import positional_slope, positional_weight, shape, symbolic_weight
from possym.theory.discrepancy import (
    Gaps,
    first_error,
    index_beta,
    index_bound,
    index_error_rate,
    index_gaps,
    lemma_beta,
    measured_beta,
    nearest_turn,
    retrieval_beta,
    retrieval_bound,
    retrieval_error_rate,
    retrieval_gaps,
    retrieval_logits,
    retrieval_margin,
)
from possym.theory.exclusion import (
    closer_by_definition,
    closer_by_score,
    mixed_head,
    permutation_deviations,
    smallest_contradiction,
    smallest_unseen_deviation,
    tightness,
)
from possym.theory.functions import index, retrieval
from possym.theory.heads import (
    ConstructedHead,
    h_pos,
    h_sym,
    letter_head,
    number_head,
    simplified_symbolic,
    stack,
    t_index,
    t_reflexive,
    t_retrieval,
    two_angle,
)

__all__ = [
    "ConstructedHead",
    "Gaps",
    "closer_by_definition",
    "closer_by_score",
    "first_error",
    "h_pos",
    "h_sym",
    "index",
    "index_beta",
    "index_bound",
    "index_error_rate",
    "index_gaps",
    "lemma_beta",
    "letter_head",
    "measured_beta",
    "mixed_head",
    "nearest_turn",
    "number_head",
    "permutation_deviations",
    "positional_slope",
    "positional_weight",
    "retrieval",
    "retrieval_beta",
    "retrieval_bound",
    "retrieval_error_rate",
    "retrieval_gaps",
    "retrieval_logits",
    "retrieval_margin",
    "shape",
    "simplified_symbolic",
    "smallest_contradiction",
    "smallest_unseen_deviation",
    "stack",
    "symbolic_weight",
    "t_index",
    "t_reflexive",
    "t_retrieval",
    "tightness",
    "two_angle",
]
