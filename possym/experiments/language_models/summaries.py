"""Numbers that the chapter and the claims read from the tables of the study, one per model or per pair of models."""

import json
from collections.abc import Mapping
from importlib import resources

import numpy as np
import pandas as pd
import scipy

from possym.experiments.language_models.reach import failing_length
from possym.profiling.statistics import Estimate

KEYS = ["encoding", "width", "corpus", "seed"]
HEAD = [*KEYS, "layer", "head"]
MARGIN = 0.5  # a head is clearly of one kind where its two scores differ by this much
JOB = 0.3  # mean attention from which a head does a known job
DRAWS = 2000
CARRIES = 0.1  # a head carries recall where zeroing it alone costs this share of what planted pairs save
RISE = 0.5  # nats per token over the loss at the trained length: there a model fails
TOLD = "measured"  # the way of `reach` that the others are to forecast
ENCODING_NAMES = {
    "rope": "RoPE, base 10⁴",
    "rope_million": "RoPE, base 10⁶",
    "slow_half_still": "slow half stopped",
    "fast_half_still": "fast half stopped",
    "nope": "no positions (NoPE)",
}


def held_out(scores: pd.DataFrame, weighting: str = "relative") -> pd.DataFrame:
    """Return the scores on held-out windows of the model's own corpus, with ``lead`` = positional − symbolic."""
    rows = scores[(scores["text"] == "held out") & (scores["weighting"] == weighting)]
    return rows.assign(lead=rows["positional"] - rows["symbolic"])


def main_models(table: pd.DataFrame, width: int = 512, corpus: str = "source") -> pd.DataFrame:
    """Return the rows of the models of one width and corpus."""
    return table[(table["width"] == width) & (table["corpus"] == corpus)]


def at_end(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last update."""
    return table[table["step"] == table["step"].max()]


def with_jobs(heads: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """Return rows of heads, each with what the same head does after the last update."""
    return heads.merge(at_end(jobs), on=HEAD)


def counts(scores: pd.DataFrame) -> pd.DataFrame:
    """Return per model and step the number of clearly positional and clearly symbolic heads.

    >>> table = pd.DataFrame({"encoding": "rope", "width": 8, "corpus": "source", "seed": 0, "step": 0,
    ...                       "lead": [0.6, 0.1, -0.5, -0.9]})
    >>> counts(table)[["positional", "symbolic"]].iloc[0].tolist()
    [1, 2]
    """
    kinds = scores.assign(positional=scores["lead"] >= MARGIN, symbolic=scores["lead"] <= -MARGIN)
    return kinds.groupby([*KEYS, "step"], as_index=False)[["positional", "symbolic"]].sum()


def onsets(table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return per model the first step from which each count is never 0 again; NaN where it is 0 at the end.

    >>> table = pd.DataFrame({"encoding": "rope", "width": 8, "corpus": "source", "seed": 0, "step": [0, 10, 20, 30],
    ...                       "heads": [1, 0, 1, 2], "none": 0})
    >>> onsets(table, ["heads", "none"])[["heads", "none"]].iloc[0].tolist()
    [20.0, nan]
    """
    rows = []
    for key, model in table.sort_values("step").groupby(KEYS):
        found = []
        for column in columns:
            there = (model[column] > 0).to_numpy()
            gone = np.flatnonzero(~there)
            first = gone[-1] + 1 if len(gone) else 0
            found.append(float(model["step"].iloc[first]) if first < len(model) else np.nan)
        rows.append((*key, *found))
    return pd.DataFrame(rows, columns=[*KEYS, *columns])


def job_counts(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return per model and step the number of previous-token heads (on text) and of induction heads."""
    doing = jobs.assign(previous_token=jobs["previous_token"] >= JOB, induction=jobs["induction"] >= JOB)
    return doing.groupby([*KEYS, "step"], as_index=False)[["previous_token", "induction"]].sum()


def correlations(scores: pd.DataFrame) -> pd.DataFrame:
    """Return per model and step Pearson's r between the two scores over heads; NaN where a score is the same for all.

    >>> table = pd.DataFrame({"encoding": "nope", "width": 8, "corpus": "source", "seed": 0, "step": 0,
    ...                       "positional": [0.1, 0.2], "symbolic": [1.0, 1.0]})
    >>> correlations(table)["r"].tolist()
    [nan]
    """
    rows = []
    for key, model in scores.groupby([*KEYS, "step"]):
        constant = model[["positional", "symbolic"]].std().min() == 0
        rows.append((*key, np.nan if constant else float(model["positional"].corr(model["symbolic"]))))
    return pd.DataFrame(rows, columns=[*KEYS, "step", "r"])


def early_minus_late(scores: pd.DataFrame) -> pd.DataFrame:
    """Return per model the median lead of the first half of the layers less that of the second."""
    half = scores["layer"].max() // 2
    medians = scores.assign(early=scores["layer"] <= half).groupby([*KEYS, "early"])["lead"].median().unstack()
    return (medians[True] - medians[False]).rename("difference").reset_index()


def auc(labels: np.ndarray, values: np.ndarray) -> float:
    """Return how often a labelled head has the greater value than another, ties counted half; NaN of one sort alone.

    >>> auc(np.array([True, False, False]), np.array([2.0, 1.0, 2.0]))
    0.75
    """
    chosen, others = values[labels], values[~labels]
    if not len(chosen) or not len(others):
        return float("nan")
    return float(scipy.stats.mannwhitneyu(chosen, others).statistic / (len(chosen) * len(others)))


def clustered_auc(table: pd.DataFrame, label: str, value: str) -> Estimate:
    """Return the AUC of a score for a job, its 95 % interval from resampled models and layers, and a p-value.

    A draw takes models with replacement, and of each its layers with replacement: heads of one layer are not
    independent, nor are layers of one model. The p-value is that of labels shuffled within models, (k + 1)/(n + 1).
    `possym.profiling.statistics.area_under_curve` is for the heads of one model: its layers are the units, and there is
    no p-value.

    Args:
        table: `KEYS`, layer, the column ``label`` (bool) and the column ``value``, one row per head.
    """
    generator = np.random.default_rng(0)
    models = [model for _, model in table.groupby(KEYS)]
    labels = [model[label].to_numpy(bool) for model in models]
    values = np.concatenate([model[value].to_numpy(float) for model in models])
    group = np.concatenate(labels)
    observed = auc(group, values)

    layers = [model.groupby("layer").ngroup().to_numpy() for model in models]
    sizes = [layer.max() + 1 for layer in layers]
    starts = np.cumsum([0, *sizes])
    times = np.zeros((DRAWS, starts[-1]))  # how often a draw has each layer of each model
    for row in times:
        for m in generator.integers(len(models), size=len(models)):
            np.add.at(row, starts[m] + generator.integers(sizes[m], size=sizes[m]), 1)
    unit = np.eye(starts[-1])[np.concatenate([start + layer for start, layer in zip(starts, layers, strict=False)])]
    wins = (values[group, None] > values[~group]) + 0.5 * (values[group, None] == values[~group])
    between = unit[group].T @ wins @ unit[~group]  # wins of one layer's labelled heads over another's other heads
    pairs = (times @ unit[group].sum(0)) * (times @ unit[~group].sum(0))
    drawn = ((times @ between) * times).sum(1)[pairs > 0] / pairs[pairs > 0]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)

    shuffled = np.stack([np.concatenate([generator.permutation(own) for own in labels]) for _ in range(DRAWS)])
    n = group.sum()
    by_chance = (shuffled @ scipy.stats.rankdata(values) - n * (n + 1) / 2) / (n * (len(group) - n))
    beyond = int(np.sum(np.abs(by_chance - 0.5) >= abs(observed - 0.5)))
    return Estimate(observed, float(low), float(high), (beyond + 1) / (DRAWS + 1))


def paired(table: pd.DataFrame, value: str, first: str, second: str, by: str = "encoding") -> Estimate:
    """Return the mean over seeds of one group's value less another's, with its 95 % interval and p-value by Student.

    >>> table = pd.DataFrame({"encoding": ["a", "a", "b", "b"], "seed": [0, 1, 0, 1], "value": [3.0, 5.0, 1.0, 1.0]})
    >>> paired(table, "value", "a", "b").value
    3.0
    """
    wide = table.pivot_table(index="seed", columns=by, values=value)
    return over_seeds((wide[first] - wide[second]).dropna())


def over_seeds(values: pd.Series) -> Estimate:
    """Return the mean of values, one per seed, with the 95 % interval and the p-value against 0 by Student.

    >>> [round(number, 2) for number in over_seeds(pd.Series([1.0, 2.0, 3.0]))]
    [2.0, -0.48, 4.48, 0.07]
    """
    found = scipy.stats.ttest_1samp(values, 0.0)
    low, high = found.confidence_interval(0.95)
    return Estimate(float(values.mean()), float(low), float(high), float(found.pvalue))


def agreement(scores: pd.DataFrame, text: str) -> pd.DataFrame:
    """Return per model Spearman's correlation of heads' leads on another text with those on held-out windows."""
    rows = scores[scores["weighting"] == "relative"]
    rows = at_end(rows).assign(lead=lambda table: table["positional"] - table["symbolic"])
    wide = rows.pivot_table(index=HEAD, columns="text", values="lead")
    pairs = wide[["held out", text]].dropna().reset_index()
    found = [(*key, float(scipy.stats.spearmanr(m["held out"], m[text]).statistic)) for key, m in pairs.groupby(KEYS)]
    return pd.DataFrame(found, columns=[*KEYS, "agreement"])


def plane_trend(planes: pd.DataFrame) -> pd.DataFrame:
    """Return per model Spearman's correlation of frequency ID with lead, over the planes with norms above the median.

    Planes whose logits are all next to nothing are uniform, which satisfies both definitions; the median is that of
    each head.
    """
    last = at_end(planes).assign(lead=lambda table: table["positional"] - table["symbolic"])
    large = last[last["norm"] > last.groupby(HEAD)["norm"].transform("median")]
    rows = [
        (*key, float(scipy.stats.spearmanr(m["frequency_id"], m["lead"]).statistic)) for key, m in large.groupby(KEYS)
    ]
    return pd.DataFrame(rows, columns=[*KEYS, "trend"])


def far_loss(length: pd.DataFrame, trained: int) -> pd.DataFrame:
    """Return per model and edit the mean held-out loss at positions from four times the trained length on."""
    far = length[length["position"] >= 4 * trained]
    return far.groupby([*KEYS, "edit"], as_index=False)["loss"].mean()


def recall_less_middle(recall: pd.DataFrame) -> pd.DataFrame:
    """Return per model the mean recall of the nearest and of the farthest third of distances less the middle third's.

    Both ``near`` and ``far`` are positive where the middle is lost; where recall fades with distance ``far`` is not.
    """
    part = recall.groupby(KEYS)["distance"].rank(pct=True)
    where = pd.Series(np.select([part <= 1 / 3, part <= 2 / 3], ["near", "middle"], "far"), index=recall.index)
    means = recall.assign(where=where).groupby([*KEYS, "where"])["accuracy"].mean().unstack()
    return means[["near", "far"]].sub(means["middle"], axis=0).reset_index()


def recall_lost(without: pd.DataFrame) -> pd.DataFrame:
    """Return what pairs save the intact model, and how much less without heads: the rows edited, ``saved``, ``lost``.

    What a pair saves is the loss of its second token where it is absent less that where it stands in the window, in
    nats; an edit that makes every token costlier loses nothing.

    >>> model = {"encoding": "rope", "width": 8, "corpus": "source", "seed": 0, "distance": 4}
    >>> table = pd.DataFrame([{**model, "group": "none", "planted": 5.0, "absent": 9.0},
    ...                       {**model, "group": "head", "planted": 8.0, "absent": 9.5}])
    >>> recall_lost(table)[["saved", "lost"]].iloc[0].tolist()
    [4.0, 2.5]
    """
    rows = without.assign(gain=without["absent"] - without["planted"])
    none = rows["group"] == "none"
    saved = rows[none].set_index([*KEYS, "distance"])["gain"].rename("saved")
    rows = rows[~none].join(saved, on=[*KEYS, "distance"])
    return rows.assign(lost=rows["saved"] - rows["gain"]).drop(columns=["gain", "planted", "absent"])


def recall_carriers(lost: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Return per head its share of recall, over all distances, beside its lead on held-out text at the end.

    Args:
        lost: as `recall_lost` gives it.
        scores: as `held_out` gives them.

    Returns:
        `KEYS`, layer, head, share, lead, carrier (whether the share is at least `CARRIES`). No head has a share where
        pairs save nothing.
    """
    sums = lost[lost["group"] == "head"].groupby(HEAD)[["lost", "saved"]].sum()
    share = (sums["lost"] / sums["saved"]).where(sums["saved"] > 0).rename("share").reset_index()
    heads = share.merge(at_end(scores)[[*HEAD, "lead"]], on=HEAD)
    return heads.assign(carrier=heads["share"] >= CARRIES)


def quarter_lost(lost: pd.DataFrame) -> pd.DataFrame:
    """Return per model and group of heads the recall lost, in nats: the mean over distances and draws."""
    groups = lost[lost["group"] != "head"]
    return groups.groupby([*KEYS, "group"], as_index=False)["lost"].mean()


def share_by_kind(lost: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Return per model and distance the shares of recall that heads of each quarter carry, one at a time, summed.

    Args:
        lost, scores: as for `recall_carriers`.

    Returns:
        `KEYS`, distance, saved, and in nats what the most ``positional`` and the most ``symbolic`` quarter carry.
    """
    leads = at_end(scores)[[*HEAD, "lead"]]
    rank = leads.groupby(KEYS)["lead"].rank(pct=True, method="first")
    leads = leads.assign(kind=np.select([rank <= 0.25, rank > 0.75], ["symbolic", "positional"], "neither"))
    rows = lost[lost["group"] == "head"].merge(leads, on=HEAD)
    sums = rows.pivot_table(index=[*KEYS, "distance"], columns="kind", values="lost", aggfunc="sum")
    saved = rows.groupby([*KEYS, "distance"])["saved"].mean()
    return sums[["positional", "symbolic"]].join(saved).reset_index()


def turn_symbolic(shares: pd.DataFrame) -> pd.DataFrame:
    """Return per model how much more of recall symbolic than positional heads carry, far less near (``turn``).

    Near are the two shortest of the distances, far the two longest; each side's carried nats are divided by those that
    pairs save there.

    Args:
        shares: as `share_by_kind` gives them.
    """
    place = shares.groupby(KEYS)["distance"].rank()
    last = shares.groupby(KEYS)["distance"].transform("size")
    sides = shares.assign(
        side=np.select([place <= 2, place > last - 2], ["near", "far"], "between"),
        more=shares["symbolic"] - shares["positional"],
    )
    sums = sides.groupby([*KEYS, "side"])[["more", "saved"]].sum()
    wide = (sums["more"] / sums["saved"]).unstack()
    return (wide["far"] - wide["near"]).rename("turn").reset_index()


def failing_lengths(reach: pd.DataFrame) -> pd.DataFrame:
    """Return per model the length at which its loss has risen by `RISE`, one column for each way of `reach`."""
    rows = []
    for (*key, way), model in reach.sort_values("length").groupby([*KEYS, "way"]):
        rows.append((*key, way, failing_length(model["length"].tolist(), model["loss"].tolist(), RISE)))
    table = pd.DataFrame(rows, columns=[*KEYS, "way", "length"])
    return table.pivot_table(index=KEYS, columns="way", values="length").reset_index()


def forecast_errors(lengths: pd.DataFrame, trained: int) -> pd.DataFrame:
    """Return per model how many times 2 each forecast of its failing length is off: ``forecast`` and two constants.

    ``at once`` says that every model fails at the trained length; ``others`` says the mean, in logarithms, of what the
    models of the same seed with other encodings do.

    Args:
        lengths: as `failing_lengths` gives them.
        trained: tokens of a training window.
    """
    told = np.log2(lengths[TOLD])
    group = told.groupby([lengths["width"], lengths["corpus"], lengths["seed"]])
    others = (group.transform("sum") - told) / (group.transform("size") - 1)
    forecasts = {"forecast": np.log2(lengths["relocated"]), "at once": np.log2(trained), "others": others}
    return lengths[KEYS].assign(**{name: (forecast - told).abs() for name, forecast in forecasts.items()})


def rises(reach: pd.DataFrame) -> pd.DataFrame:
    """Return per model the rise of the loss from the trained length to the longest, one column for each way."""
    ordered = reach.sort_values("length").groupby([*KEYS, "way"])["loss"]
    return (ordered.last() - ordered.first()).unstack().reset_index()


def models_of(tables: Mapping[str, pd.DataFrame], encoding: str, width: int, corpus: str) -> dict[str, pd.DataFrame]:
    """Return the rows of the models of one encoding, width and corpus, of every table that names models."""
    named = {name: main_models(table, width, corpus) for name, table in tables.items() if "encoding" in table}
    return {name: table[table["encoding"] == encoding] for name, table in named.items()}


def seed_of(models: Mapping[str, pd.DataFrame], seed: int) -> dict[str, pd.DataFrame]:
    """Return the rows of one seed of every table."""
    return {name: table[table["seed"] == seed] for name, table in models.items()}


def real_heads(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return model, layer, head, both scores on natural text and mean previous_token and induction of real models.

    Args:
        tables: those of `possym.experiments.two_models`.
    """
    head = ["model", "layer", "head"]
    text = tables["atlas_scores"].query("material == 'natural text'")
    known = tables["atlas"][tables["atlas"]["definition"].isin(["previous_token", "induction"])]
    means = known.pivot_table(index=head, columns="definition", values="value").reset_index()
    return text[[*head, "positional", "symbolic"]].merge(means, on=head)


def models_in_words(tables: Mapping[str, pd.DataFrame]) -> str:
    """Say which models were trained, on how much, and how well they read."""
    timing, corpora = tables["timing"], tables["corpora"].set_index("corpus")
    main = timing.loc[timing["width"] == timing["width"].mode()[0]].iloc[0]
    own = main_models(at_end(tables["loss"]), main["width"], main["corpus"])["loss"]
    return (
        f"{len(timing)} models were trained, {timing['encoding'].nunique()} encodings with "
        f"{timing['seed'].nunique()} seeds each and {len(timing) - len(own)} "
        f"of other sizes and texts. Each read {main['tokens'] / 1e6:.0f} million tokens. On files that were held out, "
        f"the {len(own)} models of {main['parameters'] / 1e6:.0f} million parameters end at {own.min():.2f} to "
        f"{own.max():.2f} nats per token; token frequencies alone give {corpora.loc[main['corpus'], 'unigram']:.2f}."
    )


def wave_in_words(scores: pd.DataFrame, jobs: pd.DataFrame) -> str:
    """Say how sharp the heads of the first wave are, what comes of them, and what induction heads were before."""
    rows = held_out(scores)
    leads = rows.pivot_table(index=["seed", "layer", "head"], columns="step", values="lead")
    crest = int((leads >= MARGIN).sum().idxmax())
    wave = leads[crest] >= MARGIN
    if not wave.any():
        return "No head is clearly positional at any update."
    last = leads.columns.max()
    at_crest = rows[rows["step"] == crest].set_index(["seed", "layer", "head"])
    start = rows[rows["step"] == 0]["entropy"].median()
    doing = jobs.pivot_table(index=["seed", "layer", "head"], columns="step", values="induction") >= JOB
    found = doing[last]
    before = max((step for step in leads if not doing[step].any()), default=0)
    stayed = int((wave & (leads[last] >= MARGIN)).sum())
    turned = int((wave & (leads[last] <= -MARGIN)).sum())
    early = int((leads.loc[found, before] <= -MARGIN).sum())
    return (
        f"At update {crest} the wave is highest: {int(wave.sum())} of {len(wave)} heads are clearly positional. Their "
        f"attention has a median entropy of {at_crest.loc[wave, 'entropy'].median():.2f} nats (at the start "
        f"{start:.2f}). At the end {stayed} of these heads are positional, and {turned} are symbolic; "
        f"{int((leads[last] >= MARGIN).sum())} of all heads end positional. Of the {int(found.sum())} heads that end "
        f"as induction heads, {early} were clearly symbolic at update {before}, when no seed had an induction head."
    )


def carriers_in_words(without: pd.DataFrame, scores: pd.DataFrame, jobs: pd.DataFrame) -> str:
    """Say how many heads of known jobs carry recall, and how sharp the previous-token heads among them are."""
    heads = with_jobs(recall_carriers(recall_lost(without), held_out(scores)), jobs)
    before, copying, carry = heads["previous_token"] >= JOB, heads["induction"] >= JOB, heads["carrier"]
    said = (
        f"Of {copying.sum()} induction heads {(copying & carry).sum()} carry recall, of {before.sum()} previous-token "
        f"heads {(before & carry).sum()}."
    )
    sharp, dull = (heads.loc[before & chosen, "previous_token"] for chosen in (carry, ~carry))
    if len(sharp) and len(dull) and sharp.min() > dull.max():
        each = (before & carry).groupby(heads["seed"]).sum()
        many = str(each.min()) if each.nunique() == 1 else f"{each.min()} to {each.max()}"
        said += (
            f" These {len(sharp)} are the sharpest previous-token heads, {many} in every seed. They put at least "
            f"{sharp.min():.2f} of their attention on the token before, the others at most {dull.max():.2f}."
        )
    return said


def failing_table(reach: pd.DataFrame) -> pd.DataFrame:
    """Return the length at which models of each encoding fail, measured, forecast and by each cause alone: medians."""
    ways = {TOLD: "measured", "relocated": "forecast", "gap": "new angles alone", "more keys": "more keys alone"}
    table = failing_lengths(reach).groupby("encoding", sort=False)[list(ways)].median().round().astype(int)
    table.index = [ENCODING_NAMES.get(name, name) for name in table.index]
    return table.rename(columns=ways).rename_axis(index="encoding", columns=None)


def strongest_planes(scores: pd.DataFrame, planes: pd.DataFrame) -> pd.DataFrame:
    """Return the clearly positional heads at the end, each with the frequency ID of its plane of largest logits."""
    last, head = at_end(planes), [*KEYS, "layer", "head"]
    largest = last.loc[last.groupby(head)["norm"].idxmax(), [*head, "frequency_id"]]
    heads = at_end(held_out(scores))
    return heads[heads["lead"] >= MARGIN].merge(largest, on=head)


def planes_in_words(scores: pd.DataFrame, planes: pd.DataFrame) -> str:
    """Say on which planes the positional heads of each RoPE encoding lean, all seeds together."""
    names = {"rope": "RoPE", "fast_half_still": "the fast half stopped", "slow_half_still": "the slow half stopped"}
    found, told = strongest_planes(scores, planes), []
    for encoding, name in names.items():
        own = found.loc[found["encoding"] == encoding, "frequency_id"]
        if len(own):
            most = sorted(own.value_counts().index[:3])
            words = ", ".join(map(str, most))
            told.append(f"{words} with {name} ({int(own.isin(most).sum())} of {len(own)} heads)")
    if not told:
        return "No head is clearly positional at the end."
    return f"The frequency IDs where positional heads most often have their largest logits are {'; '.join(told)}."


def model_table(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return what the models of each encoding, width and corpus end with: medians over seeds."""
    kinds, doing = at_end(counts(held_out(tables["scores"]))), at_end(job_counts(tables["jobs"]))
    rows = kinds.merge(doing, on=[*KEYS, "step"]).merge(at_end(tables["loss"]), on=[*KEYS, "step"])
    groups = rows.groupby(["corpus", "encoding", "width"], sort=False)
    heads = ["positional", "symbolic", "previous_token", "induction"]
    table = groups[heads].median().astype(int).assign(loss=groups["loss"].median().round(2), seeds=groups.size())
    table.index = [f"{ENCODING_NAMES.get(name, name)}; {width}; {corpus}" for corpus, name, width in table.index]
    return table.rename(columns={"previous_token": "previous token"}).rename_axis("encoding; width; corpus")


def cost_in_words(tables: Mapping[str, pd.DataFrame]) -> str:
    """Say how long models took, and how long their arithmetic alone would."""
    timing = tables["timing"]
    main = timing[timing["width"] == timing["width"].mode()[0]]
    first = main.iloc[0]
    said = (
        f"{len(timing)} models on {first['device']}, several at once on one device: "
        f"{main['seconds'].median():.0f} s each (median, width {first['width']}), evaluations included."
    )
    speed = json.loads(resources.files("possym").joinpath("data/language_model_speed.json").read_text("utf-8"))
    if first["device"] != speed["device"]:
        return said
    updates = first["tokens"] / speed["tokens_per_update"]
    floor = 6 * first["parameters"] * first["tokens"] / (speed["teraflops"] * 1e12)
    return (
        f"{said} Alone on the card a model makes {speed['updates_per_second']:.1f} updates a second, "
        f"{updates / speed['updates_per_second']:.0f} s without evaluations. Its arithmetic, six operations per "
        f"parameter and token, would take {floor:.0f} s at the card's measured {speed['teraflops']:.0f} TFLOP/s "
        f"(host: {speed['host']})."
    )
