"""The study of a real model: what it stores against plain computations, its choices, its resuming, its refusals."""

import itertools

import pandas as pd
import pytest
import torch

import possym
from possym import results
from possym.capture import Capture
from possym.capture.edits import ablate_frequencies
from possym.capture.known_heads import known_heads
from possym.experiments import real_models
from possym.experiments.real_models import FORMS, HELD, Config
from possym.experiments.real_models.random_weights import WEIGHTS, random_weights, sharpen
from possym.experiments.real_models.scoring_choices import swap_sets
from possym.scores import swap_scores

HEAD = ["layer", "head"]


def config(**changes):
    return Config.preset_named("smoke", device="cpu", **changes)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(autouse=True)
def store(root, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(root))


@pytest.fixture(scope="module")
def study(root):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSSYM_RESULTS", str(root))
        return results.load_or_run(real_models, config(), "always")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The study's model, its tasks, the prompts of its reference task, and the sequences that label known heads."""
    model, tokenizer = real_models.load(config(), tmp_path_factory.mktemp("llama"))
    return model, *real_models.draw(config(), model, tokenizer)


PAPERS = dict(temperature=0.1, relative=False, progress=False)


def inputs_of(model, tokens, layer):
    found = []
    Capture(model).run(tokens, found.append)
    return next(inputs for inputs in found if inputs.layer == layer)


def test_profiles_are_those_of_every_prompt_alone(study, made):
    model, tasks, *_ = made
    heads = study.tables["heads"]
    for (name, task), form in itertools.product(tasks.items(), FORMS):
        for cut, blocks in task.blocks.items():
            mine = heads[(heads.task == name) & (heads.blocks == cut) & (heads.prompt == 1) & (heads.form == form)]
            if cut == "tokens" and name.startswith("binding") and form != FORMS[0]:
                assert mine.empty
                continue
            given = config().form(form) | {"hold": "first" if cut == HELD else None}
            alone = possym.profile(model, task.tokens[1], blocks=blocks, progress=False, **given).heads
            for column in ("positional", "symbolic", "entropy", "variance", "bound", "effective_swaps"):
                assert mine[column].tolist() == pytest.approx(alone[column].tolist(), abs=1e-4, rel=1e-4)


def test_models_of_random_weights_are_scored_as_the_model_is(study, made):
    model, tasks, *_ = made
    name, task = "binding, 16 pairs", tasks["binding, 16 pairs"]
    rows, planes = study.tables["random"], study.tables["random_planes"]
    assert set(zip(rows.weights, rows.model, rows.form, strict=True)) == set(
        itertools.product(WEIGHTS, range(2), FORMS)
    )
    for weights, form in itertools.product(WEIGHTS, FORMS):
        other = random_weights(model, weights, 1)
        if weights == "sharpened":  # all that differs is one factor
            wanted = study.tables["heads"].query("task == @name and blocks == 'statements' and form == 'papers'")
            first = possym.profile(model, task.tokens[0], blocks=task.blocks["statements"], progress=False)
            assert wanted[wanted.prompt == 0].variance.median() == pytest.approx(
                first.heads.variance.median(), rel=1e-4
            )
            sharpen(other, lambda one: possym.profile(
                one, task.tokens[0], blocks=task.blocks["statements"], progress=False
            ).heads.variance.median(), first.heads.variance.median())  # fmt: skip
        given = config().form(form) | dict(per_frequency=True, progress=False)
        found = possym.profile(other, task.tokens, blocks=task.blocks["statements"], **given)
        mine = rows[(rows.weights == weights) & (rows.model == 1) & (rows.form == form)]
        means = found.heads.groupby(HEAD)[["positional", "symbolic"]].mean()
        assert mine.set_index(HEAD)[["positional", "symbolic"]].to_numpy() == pytest.approx(means.to_numpy(), abs=1e-4)
        if form == FORMS[0]:
            mine = planes[(planes.weights == weights) & (planes.model == 1)].set_index([*HEAD, "frequency_id"])
            columns = ["positional", "symbolic", "logit_norm"]
            means = found.frequencies.groupby([*HEAD, "frequency_id"])[columns].mean()
            assert mine[columns].to_numpy() == pytest.approx(means.to_numpy(), abs=1e-3)
    assert max(len(task.tokens[0]) for task in tasks.values()) == len(tasks[name].tokens[0])


def test_frequencies_are_means_and_deviations_over_prompts(study, made):
    model, tasks, *_ = made
    name, task = next(iter(tasks.items()))
    found = possym.profile(model, task.tokens, blocks=task.blocks["tokens"], per_frequency=True, **PAPERS).frequencies
    one = found[(found.layer == 1) & (found["head"] == 2) & (found.frequency_id == 3)]
    rows = study.tables["frequencies"]
    rows = rows[rows.form == FORMS[0]]
    mine = rows[(rows.task == name) & (rows.blocks == "tokens") & (rows.layer == 1) & (rows["head"] == 2)]
    mine = mine[mine.frequency_id == 3].iloc[0]
    for column in ("positional", "symbolic", "logit_norm"):
        assert mine[column] == pytest.approx(one[column].mean(), abs=1e-4)
        assert mine[f"{column}_sd"] == pytest.approx(one[column].std(), abs=1e-4)


def test_answers_are_the_tasks_own(study, made):
    model, tasks, binding, _ = made
    prompts = study.tables["prompts"]
    for name, task in tasks.items():
        rows = prompts[prompts.task == name]
        with torch.no_grad():
            best = model(task.tokens).logits[:, -1].argmax(-1)
        assert rows.predicted.tolist() == best.tolist()
        if task.answers is None:
            assert rows.correct.isna().all()
        else:
            assert rows.correct.tolist() == (best == task.answers).tolist()
            assert study.manifest["accuracy"][name] == pytest.approx(rows.correct.astype(float).mean(), abs=1e-4)
    twice = torch.cat([tasks["repeated tokens"].tokens, tasks["repeated tokens"].answers[:, None]], 1)
    half = twice.shape[1] // 2
    assert torch.equal(twice[:, :half], twice[:, half:])
    assert torch.equal(binding.tokens, tasks["binding, 8 pairs"].tokens)


def test_changed_choices_are_scored_as_swap_scores_would(study, made):
    """Temperatures, block sizes and boundaries against blocks swapped by `swap_scores`, on the prompts of the study."""
    model, _, binding, _ = made
    blocks, layer = binding.blocks, 2
    start, stop = blocks[0][0], blocks[-1][1]
    cuts = {("temperature", f"{t:g}"): (blocks, t) for t in config().temperatures}
    relative = {("relative temperature", f"{t:g}"): (blocks, t) for t in config().relative_temperatures}
    for size in (1, 2, 4, 8):
        cuts["block size", str(size)] = [(a, a + size) for a in range(start, stop - size + 1, size)], 0.1
    for shift in range(4):
        cuts["boundary", str(shift)] = [(a + shift, b + shift) for a, b in blocks if b + shift <= stop], 0.1
    expected, counts = dict.fromkeys(cuts | relative, 0), {}
    for prompt in range(2):
        inputs = inputs_of(model, binding.tokens[prompt], layer)
        relocated, own = inputs.relocated_logits()[0], inputs.extra_logits()[0]
        for key, (cut, temperature) in (cuts | relative).items():
            given = dict(extra_logits=own, blocks=cut, temperature=temperature, relative=key in relative)
            expected[key] = expected[key] + torch.stack(swap_scores(relocated, **given)[:2], -1) / 2
            attention = torch.cat([relocated.diagonal(dim1=-2, dim2=-1), own], -1).softmax(-1)
            shares = torch.stack([attention[:, a:b].mean(-1) for a, b in cut], -1)
            first, second = torch.triu_indices(len(cut), len(cut), 1)
            apart = (shares[:, first] - shares[:, second]).abs()
            apart = apart.log() if key in relative else apart
            entropy = torch.distributions.Categorical(logits=apart / temperature).entropy()
            counts[key] = counts.get(key, 0) + entropy.exp() / 2
    table = study.tables["sensitivity"].set_index(["choice", "value", "layer"]).sort_index()
    for (choice, value), scores in expected.items():
        mine = torch.tensor(table.loc[(choice, value, layer), ["positional", "symbolic"]].to_numpy())
        assert torch.allclose(mine, scores.float(), atol=2e-5), (choice, value)
        mine = torch.tensor(table.loc[(choice, value, layer), "effective_swaps"].to_numpy())
        if "temperature" in choice:
            assert torch.allclose(mine, counts[choice, value].float(), rtol=1e-3), (choice, value)
        else:
            assert mine.isnan().all()
    everything = table.loc[("swaps", "all", layer), ["positional", "symbolic"]].to_numpy()
    assert torch.allclose(torch.tensor(everything), expected["temperature", "0.1"].float(), atol=2e-5)


def test_swap_sets_are_what_they_say():
    sets = {name: {tuple(pair) for pair in pairs.tolist()} for name, pairs in swap_sets(6, 2).items()}
    assert sets["all"] == set(itertools.combinations(range(6), 2))
    assert sets["neighbours"] == {(k, k + 1) for k in range(5)}
    assert sets["with the asked"] == {pair for pair in sets["all"] if 2 in pair}
    assert sets["without the asked"] == sets["all"] - sets["with the asked"]
    assert sets["at least half apart"] == {(a, b) for a, b in sets["all"] if b - a >= 3}


def test_chosen_heads_are_the_extremes(study):
    heads = study.tables["heads"]
    wanted = (heads.task == "binding, 8 pairs") & (heads.blocks == "statements") & (heads.form == FORMS[0])
    means = heads[wanted].groupby(HEAD)[["positional", "symbolic"]].mean()
    lead = means.positional - means.symbolic
    chosen = study.tables["examples"].groupby("kind")[HEAD].first().apply(tuple, axis=1)
    assert chosen["positional"] == lead.sort_values().index[-1]
    assert chosen["symbolic"] == lead.sort_values().index[0]
    assert chosen["uniform"] == means.min(axis=1).sort_values().index[-1]


def test_permuted_attention_is_that_of_layer_0_with_its_statements_permuted(made):
    """In the first layer keys hold their tokens alone, so moving them is moving the tokens."""
    model, _, binding, _ = made
    tokens, blocks = binding.tokens[0], binding.blocks
    order = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])
    eager = type(model).from_pretrained(model.config.name_or_path, attn_implementation="eager")
    moved = tokens.clone()
    for (start, stop), content in zip(blocks, order.tolist(), strict=True):
        moved[start:stop] = tokens[slice(*blocks[content])]
    for head in range(4):
        found = real_models.permuted_attention(inputs_of(model, tokens, 0), slice(head, head + 1), blocks, order)
        for mine, ids in zip(found, (tokens, moved), strict=True):
            with torch.no_grad():
                weights = eager(ids[None], output_attentions=True).attentions[0][0, head, -1]
            truth = torch.stack([weights[a:b].sum() for a, b in blocks])
            assert torch.allclose(mine, truth, atol=1e-5)


def test_planes_hold_contents_before_rotation(study, made):
    """Their dot products, turned by the distance, add up to the head's logits less the planes left out."""
    model, _, binding, _ = made
    planes = study.tables["planes"]
    rows = planes[planes.kind == "symbolic"]
    layer, head = int(rows.layer.iloc[0]), int(rows["head"].iloc[0])
    last = len(binding.tokens[0]) - 1
    inputs = inputs_of(model, binding.tokens[0], layer)
    for number, part in rows.groupby("frequency_id"):
        query = part[(part.role == "query") & (part.place == last)][["x", "y"]].to_numpy()[0]
        keys = part[part.role == "key"].sort_values("place")[["x", "y"]].to_numpy()
        angle = inputs.angles[number - 1].item()
        content = complex(*query)
        for place in (0, 5, last - 1):
            logit = (complex(*keys[place]).conjugate() * content * torch.polar(
                torch.tensor(1.0), torch.tensor((last - place) * angle)).item()).real * inputs.scale  # fmt: skip
            one = slice(number - 1, number)
            true = inputs.relocated_logits(slice(head, head + 1), per_plane=one)[0, 0, 0, place, place]
            assert logit == pytest.approx(true.item(), abs=1e-4)


def resultant(vectors):
    """Length of the mean of the directions of complex numbers."""
    return abs(sum(z / abs(z) for z in vectors) / len(vectors))


def test_directions_are_those_of_contents_before_rotation(study, made):
    """In the planes that are stored point by point."""
    planes, directions = study.tables["planes"], study.tables["directions"]
    assert len(directions) == 4 * 4 * 4
    rows = directions.set_index([*HEAD, "frequency_id"])
    for (layer, head, number, role), part in planes.groupby([*HEAD, "frequency_id", "role"]):
        expected = resultant([complex(x, y) for x, y in part[["x", "y"]].to_numpy()])
        assert rows.loc[(layer, head, number), role] == pytest.approx(expected, abs=1e-5)


def test_knob_measures_an_edited_model(study, made):
    model, tasks, _, labels = made
    knob = study.tables["knob"]
    row = knob[(knob.heads == "all") & (knob.band == "IDs 2 to 2") & (knob.how == "silence")].iloc[0]
    text, binding = tasks["natural text"].tokens, tasks["binding, 8 pairs"]
    with torch.no_grad(), ablate_frequencies(model, [2]):
        loss = model(text, labels=text, use_cache=False).loss
        answer = model(binding.tokens, use_cache=False).logits[:, -1].log_softmax(-1)
    assert row.text_loss == pytest.approx(loss.item(), abs=1e-4)
    assert row.binding_log_probability == pytest.approx(
        answer.gather(1, binding.answers[:, None]).mean().item(), abs=1e-4
    )
    twice = torch.cat([tasks["repeated tokens"].tokens, tasks["repeated tokens"].answers[:, None]], 1)
    half = twice.shape[1] // 2
    with torch.no_grad(), ablate_frequencies(model, [2]):
        logits = model(twice, use_cache=False).logits[:, half:-1]
    again = twice[:, half + 1 :]
    losses = -logits.log_softmax(-1).gather(2, again[..., None])
    assert row.repeat_loss == pytest.approx(losses.mean().item(), abs=1e-4)
    assert row.repeat_accuracy == pytest.approx((logits.argmax(-1) == again).double().mean().item(), abs=1e-6)
    plain = knob[knob.band == "none"].iloc[0]
    with torch.no_grad():
        assert plain.text_loss == pytest.approx(model(text, labels=text).loss.item(), abs=1e-4)
    # Known heads are chosen on other sequences than those that their attention is measured on.
    assert not torch.equal(labels, twice)
    known, here = study.tables["known"], known_heads(model, twice).set_index(HEAD)
    pd.testing.assert_frame_equal(known, known_heads(model, labels), check_dtype=False, atol=1e-5)
    for name in ("previous_token", "induction"):
        chosen = known.nlargest(3, name).set_index(HEAD).index
        assert plain[name] == pytest.approx(here.loc[chosen, name].mean(), abs=1e-5)
        assert row[name] != pytest.approx(plain[name], abs=1e-4)


def test_an_interrupted_run_goes_on_after_its_last_stage(study, tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))

    def broken(*_):
        raise RuntimeError("cut off")

    real = real_models.knob
    monkeypatch.setattr(real_models, "knob", broken)
    with pytest.raises(RuntimeError, match="cut off"):
        results.load_or_run(real_models, config(), "always")
    monkeypatch.setattr(real_models, "knob", real)
    monkeypatch.setattr(real_models, "profiles", broken)
    monkeypatch.setattr(real_models, "sensitivity", broken)
    again = results.load_or_run(real_models, config(), "always")
    for name, table in study.tables.items():
        pd.testing.assert_frame_equal(again.tables[name].reset_index(drop=True), table.reset_index(drop=True))


def test_same_seed_same_study(study, tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))
    torch.manual_seed(99)
    again = results.load_or_run(real_models, config(), "always")
    pd.testing.assert_frame_equal(again.tables["heads"], study.tables["heads"])
    pd.testing.assert_frame_equal(again.tables["knob"], study.tables["knob"])


def test_paper_preset_is_the_default_model_at_the_papers_sizes():
    paper = Config.preset_named("paper")
    assert (paper.model, paper.pairs, paper.reference) == ("SmolLM2-135M-Instruct", (8, 64, 256), 64)
