"""The slow truth: move the keys for real, redo the attention, and compare before with after."""

import itertools
import math

import torch


def rotation_matrix(dim, position, angles, layout):
    """The whole (dim, dim) rotation at a position, written out entry by entry."""
    matrix = torch.eye(dim, dtype=torch.float64)
    count = len(angles)
    for k, angle in enumerate(angles.tolist()):
        a, b = (2 * k, 2 * k + 1) if layout == "interleaved" else (k, k + count)
        matrix[a, a] = matrix[b, b] = math.cos(position * angle)
        matrix[a, b], matrix[b, a] = -math.sin(position * angle), math.sin(position * angle)
    return matrix


def attend(query, keys, query_position, positions, angles, layout, scale, extra):
    """Attention of one query over keys at their places, extra logits included; keys in the order of `positions`."""
    turned_query = rotation_matrix(len(query), query_position, angles, layout) @ query
    logits = [
        scale * float((rotation_matrix(len(key), place, angles, layout) @ key) @ turned_query)
        for key, place in zip(keys, positions, strict=True)
    ]
    everything = torch.tensor(logits + list(extra), dtype=torch.float64)
    return everything.softmax(0)


def swapped_order(order, first, second):
    """The order of contents after two blocks (start, stop) change places, what lies between shifting."""
    (a, b), (c, d) = first, second
    return order[:a] + order[c:d] + order[b:c] + order[a:b] + order[d:]


def swap_scores(
    query, keys, query_position, positions, angles, layout, scale, extra, blocks, temperature, relative=False
):
    """Both scores of one head on one input by permuting and attending again; entropy; the number of swaps that count.

    With ``relative`` the stakes are read off the keys in blocks alone, attended as if there were no others.
    """
    if blocks is None:
        blocks = [(t, t + 1) for t in range(len(keys))]

    def redo(order):
        return attend(query, [keys[t] for t in order], query_position, positions, angles, layout, scale, extra)

    order = list(range(len(keys)))
    before = redo(order)
    moved = redo(order)[[t for a, b in blocks for t in range(a, b)]]
    mean = [before[a:b].mean() for a, b in blocks]
    stakes = [m / moved.sum() for m in mean] if relative else mean
    positional, symbolic, weights = [], [], []
    for i, j in itertools.combinations(range(len(blocks)), 2):
        (a, b), (c, d) = blocks[i], blocks[j]
        after = redo(swapped_order(order, blocks[i], blocks[j]))
        old = torch.stack([mean[i], mean[j]])
        new = torch.stack([after[a : a + d - c].mean(), after[d - (b - a) : d].mean()])
        cosine = lambda u, v: float((u / u.max()) @ (v / v.max()) / (u / u.max()).norm() / (v / v.max()).norm())  # noqa: E731
        positional.append(cosine(new, old))
        symbolic.append(cosine(new, old.flip(0)))
        weights.append(abs(stakes[i] - stakes[j]))
    differences = torch.stack(weights)
    alpha = ((differences.log() if relative else differences) / temperature).softmax(0)
    entropy = -(before * before.log().nan_to_num(neginf=0.0)).sum()
    positional, symbolic = (torch.tensor(values, dtype=torch.float64) for values in (positional, symbolic))
    count = math.exp(-sum(float(a) * math.log(a) for a in alpha if a > 0))
    return float(alpha @ positional), float(alpha @ symbolic), float(entropy), count
