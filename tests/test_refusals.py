"""What is of the wrong kind is refused by name, in every part of the library that a user calls directly."""

import math

import pandas as pd
import pytest
import torch

import possym
from possym import claims, theory
from possym.ensembles import explorer as explorers
from possym.ensembles import last_token as heads
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.schedule import TrainingConfig, learning_rates
from possym.ensembles.streams import generator
from possym.ensembles.token_table import TokenTable
from possym.ensembles.training import Trainer, clip_factor
from possym.errors import InputError
from possym.experiments import learning_dynamics
from possym.experiments.learning_dynamics import summaries as dynamics
from possym.models import hub
from possym.profiling import sensitivity
from possym.results import Study, save
from possym.results.published import published
from possym.rope import planes
from possym.tasks import LetterTask, NumberTask

SIZES = GPTJConfig(vocabulary_size=136, layers=2, width=8)
MODEL = GPTJEnsemble(SIZES, [0])
WEIGHTS = dict(MODEL.named_parameters())
TOKENS = torch.zeros(1, 4, 17, dtype=torch.int64)
SOURCE = TokenTable(TOKENS, TOKENS[..., 0], 2)
PLAN = TrainingConfig(2, 2, warmup=0)
INDEX = theory.t_index(torch.tensor([0, 0, 1, 2]), 0.8)
CONFIG = learning_dynamics.Config()
SQUARE = torch.zeros(4, 4)

CALLS = {
    "planes": (lambda: planes("x", torch.ones(1), "half"), "x is of type str"),
    "profile path": (lambda: possym.Profile.load(3), "path is of type int"),
    "tokenizer": (lambda: possym.profile(None, ["a b c"], tokenizer=3), "tokenizer is a int"),
    "table": (lambda: save("a", Study({"a": [1]})), "table 'a' is of type list"),
    "array": (lambda: save("a", Study({}, {"a": [1]})), "array 'a' is of type list"),
    "stream": (lambda: generator(0, ["data"]), "stream"),
    "seed": (lambda: generator(2**70, "data"), "seed"),
    "generator device": (lambda: generator(0, "data", "gpu"), "device = 'gpu'"),
    "learning rates": (lambda: learning_rates({}), "config is of type dict"),
    "clip": (lambda: clip_factor([torch.ones(2, 3)], "1"), "limit is of type str"),
    "token table": (lambda: TokenTable([[1]], TOKENS[..., 0], 2), "tokens is of type list"),
    "token ids": (lambda: TokenTable(TOKENS.float(), TOKENS[..., 0], 2), "float32"),
    "negative ids": (lambda: TokenTable(TOKENS - 1, TOKENS[..., 0], 2), "0 to 32767"),
    "no sequences": (lambda: TokenTable(TOKENS[:, :0], TOKENS[:, :0, 0], 2), "N from 1"),
    "batch": (lambda: TokenTable(TOKENS, TOKENS[..., 0], True), "batch is of type bool"),
    "step": (lambda: SOURCE.batch(-1), "update -1"),
    "trained model": (lambda: Trainer(torch.nn.Linear(2, 2), SOURCE, PLAN, [0]), "model is a Linear"),
    "plan": (lambda: Trainer(MODEL, SOURCE, None, [0]), "config is of type NoneType"),
    "seeds": (lambda: Trainer(MODEL, SOURCE, PLAN, 0), "seeds is of type int"),
    "evaluate": (lambda: Trainer(MODEL, SOURCE, PLAN, [0], evaluate="loss"), "evaluate is a str"),
    "evaluate at": (lambda: Trainer(MODEL, SOURCE, PLAN, [0], evaluate_at=[math.nan]), "evaluate_at"),
    "checkpoint": (lambda: Trainer(MODEL, SOURCE, PLAN, [0], checkpoint="a"), "checkpoint is of type str"),
    "ensemble seeds": (lambda: GPTJEnsemble(SIZES, 3), "seeds is of type int"),
    "forward dtype": (lambda: MODEL(TOKENS, dtype="float16"), "dtype = 'float16'"),
    "all places": (lambda: MODEL(TOKENS, all_places=1), "all_places is of type int"),
    "keep": (lambda: MODEL(TOKENS, dropout_keys=0.9), "dropout_keys is of type float"),
    "weights": (lambda: GPTJEnsemble.from_weights(SIZES, []), "weights is of type list"),
    "a weight": (lambda: GPTJEnsemble.from_weights(SIZES, WEIGHTS | {"head": 1}), "head is of type int"),
    "save": (lambda: MODEL.save(3), "path is of type int"),
    "save dtype": (lambda: MODEL.save("a", torch.int8), "floating dtype"),
    "load": (lambda: GPTJEnsemble.load(None), "path is of type NoneType"),
    "positions": (lambda: MODEL.member_to_transformers(0, -1), "positions = -1"),
    "hub device": (lambda: hub.load(device=["cpu"]), "device is of type list"),
    "hub dtype": (lambda: hub.load(dtype=["auto"]), "dtype = "),
    "last token": (lambda: heads.last_token_logits("model", TOKENS[0]), "model is of type str"),
    "by": (lambda: dynamics.over_seeds(pd.DataFrame({"seed": [0]}), "step", "seed"), "list of columns"),
    "column": (lambda: dynamics.over_seeds(pd.DataFrame({"seed": [0]}), ["seed"], None), "column None"),
    "published": (lambda: published(["P2"]), "key is of type list"),
    "chapter": (lambda: claims.ledger(3), "chapter is of type int"),
    "studies": (lambda: claims.ledger(studies=["theory"]), "studies is of type list"),
    "a study": (lambda: claims.what_holds("04-rope-geometry", {"theory": 3}), "studies.* is of type int"),
    "claim": (lambda: claims.finding(None), "id is of type NoneType"),
    "rows": (lambda: claims.summary(pd.DataFrame({"a": [1]})), "rows of ledger"),
    "trained study": (lambda: learning_dynamics.trained_model({}, None, "number"), "study is of type dict"),
    "trained task": (lambda: learning_dynamics.trained_model(Study({}), CONFIG, 1), "task is of type int"),
    "explorer task": (lambda: explorers.HopExplorer(MODEL, "number"), "task is of type str"),
    "explorer seed": (lambda: explorers.SwapExplorer(MODEL, NumberTask(), -1), "seed = -1"),
    "explorer's other task": (lambda: explorers.SwapExplorer(MODEL, LetterTask()), "the model knows 136"),
    "huge count": (lambda: NumberTask().sample(2**63), "n = 9223372036854775808"),
    "permutations": (lambda: sensitivity.permutation_scores(SQUARE, torch.zeros(1, 4).long()), "in some order"),
    "index tokens": (lambda: theory.index(torch.tensor([4]), torch.zeros(4).long()), "ids from 0 to 3"),
    "index values": (lambda: theory.index(torch.tensor([0]), [0]), "values is of type list"),
    "retrieval tables": (lambda: theory.retrieval(TOKENS, TOKENS[0, 0], TOKENS[0, 0, 1:]), "one value for every"),
    "letters": (lambda: theory.t_retrieval([0], torch.tensor([0]), 0.1), "left is of type list"),
    "no letters": (lambda: theory.t_retrieval(TOKENS[0, 0, :0], TOKENS[0, 0, :0], 0.1), "empty"),
    "stacked head": (lambda: theory.stack("head", 1, 2), "head is of type str"),
    "vocabulary": (lambda: theory.number_head("ab", 0.1), "list of tokens"),
    "pairs": (lambda: theory.letter_head(["a"], 0.1), "token 'a'"),
    "tables": (lambda: theory.ConstructedHead([1], SQUARE, SQUARE, torch.ones(1)), "query_table is of type list"),
    "angles": (lambda: theory.ConstructedHead(SQUARE, SQUARE, SQUARE, torch.ones(3)), "at most half"),
    "mix": (lambda: theory.mixed_head(torch.ones(2), "half"), "mix is of type str"),
    "closer": (lambda: theory.closer_by_score((1, 2, 3)), "scores is of type tuple"),
    "keys": (lambda: theory.smallest_contradiction(9, 1), "count = 9"),
    "curve": (lambda: theory.shape([1, 2, 3]), "weight is of type list"),
    "margin": (lambda: theory.lemma_beta(3, "0.5"), "margin is of type str"),
    "answers": (lambda: theory.measured_beta(INDEX, torch.tensor([[0, 1, 3]]), torch.ones(2).long(), 9.0), "each seq"),
    "no float": (lambda: theory.first_error(0.8, torch.int32, 9), "floating-point type"),
    "flag": (lambda: theory.retrieval_margin(5, 0.01, 4, integer_query="no"), "integer_query is of type str"),
    "closeness": (lambda: theory.nearest_turn(0.8, None), "closeness is of type NoneType"),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_kinds_are_refused_by_name(name):
    call, message = CALLS[name]
    with pytest.raises(InputError, match=message):
        call()
