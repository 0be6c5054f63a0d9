"""How a layer's rotary position embedding turns queries and keys: which dimensions form a plane, found by comparing.

- `detect_rope_layout` finds pairing, direction and gain that turn plain contents into what a model attends with.
- `unrotate` takes the rotation off again.
"""

import functools
import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from possym.rope import rotate_by


@dataclass(frozen=True)
class RopeLayout:
    """How one layer turns its queries and keys: which dimensions pair up, and how its tables are read.

    ``order`` (D,) puts the planes' first dimensions first, fastest plane first, then their second dimensions, then
    what does not rotate: the ``"half"`` layout of `possym.rope`. ``columns`` (F,) are the table columns of the planes,
    ``sign`` the direction of the turn. ``query_weight`` and ``key_weight`` are gains applied after the rotation.
    """

    order: Tensor
    columns: Tensor
    sign: int
    query_weight: Tensor | None
    key_weight: Tensor | None

    @functools.cached_property
    def in_order(self) -> bool:
        """Whether ``order`` leaves the dimensions where they are, so that nothing need be copied."""
        return torch.equal(self.order, torch.arange(len(self.order), device=self.order.device))

    def ordered(self, x: Tensor) -> Tensor:
        """Return ``x`` (..., D) in ``order``."""
        return x if self.in_order else x[..., self.order]


def same_layout(one: RopeLayout, other: RopeLayout) -> bool:
    """Return whether two layouts without gains are the same."""
    gains = (one.query_weight, one.key_weight, other.query_weight, other.key_weight)
    same = one.sign == other.sign and torch.equal(one.order, other.order) and torch.equal(one.columns, other.columns)
    return same and all(gain is None for gain in gains)


def distance(ours: Tensor, truth: Tensor) -> float:
    """Return the largest difference relative to the largest entry of ``truth``."""
    return ((ours - truth).abs().max() / truth.abs().max().clamp(min=1e-30)).item()


def distance_by_plane(ours: Tensor, truth: Tensor, planes: int) -> float:
    """Return the largest difference within a plane relative to the plane's largest entry, over all planes and the rest.

    A dimension with large entries, which trained models have, hides nothing in other planes. Planes that are next to
    nothing beside it are measured by a ten-thousandth of it, because rounding is all that they hold.
    """
    off, size = ((x.abs().flatten(0, -2).amax(0)) for x in (ours - truth, truth))
    parts = [(x[:planes].maximum(x[planes : 2 * planes]), x[2 * planes :]) for x in (off, size)]
    (off_planes, off_rest), (size_planes, size_rest) = parts
    least = size.max().clamp(min=1e-30) * 1e-4
    worst = (off_planes / size_planes.maximum(least)).max()
    if len(off_rest):
        worst = worst.maximum(off_rest.max() / size_rest.max().maximum(least))
    return worst.item()


def detect_rope_layout(
    plain: Tensor, rotated: Tensor, tables: tuple[Tensor, Tensor], gains: list[Tensor], tolerance: float
) -> RopeLayout | None:
    """Return the pairing, direction and gain that turn ``plain`` (H, T, D) into ``rotated``, or None."""
    width, dim = tables[0].shape[-1], plain.shape[-1]
    for rotating in {width, 2 * width}:
        if not 2 <= rotating <= dim:
            continue
        count = rotating // 2
        steps = torch.arange(count, device=plain.device)
        pairings = [(steps, steps + count), (2 * steps, 2 * steps + 1)]
        columns = [steps] if rotating == 2 * width else [steps, 2 * steps]
        for start in {0, dim - rotating}:
            for (first, second), column, sign in itertools.product(pairings, columns, (1, -1)):
                moving = torch.cat([first, second]) + start
                rest = torch.tensor(sorted(set(range(dim)) - set(moving.tolist())), dtype=torch.long)
                layout = RopeLayout(torch.cat([moving, rest.to(moving.device)]), column, sign, None, None)
                weight = detect_gain(plain, rotated, tables, layout, gains, tolerance)
                if weight is not False:
                    return fastest_first(replace(layout, query_weight=weight), tables)
    return None


def detect_gain(
    plain: Tensor,
    rotated: Tensor,
    tables: tuple[Tensor, Tensor],
    layout: RopeLayout,
    gains: list[Tensor],
    tolerance: float,
) -> Tensor | bool | None:
    """Return the gain after the rotation (None for none) that explains ``rotated``, or False."""
    cos, sin = plane_tables(tables, layout)
    for gain in (None, *gains):
        content = plain if gain is None else plain / gain
        ours = rotate_by(content[..., layout.order], cos, sin, "half")
        ours = ours if gain is None else ours * gain[layout.order]
        if distance_by_plane(ours, rotated[..., layout.order], len(layout.columns)) <= tolerance:
            return gain
    return False


def fastest_first(layout: RopeLayout, tables: tuple[Tensor, Tensor]) -> RopeLayout:
    """Return the layout with its planes sorted by angle, fastest first."""
    ranks = table_angles(*plane_tables(tables, layout)).abs().sort(descending=True, stable=True).indices
    count = len(ranks)
    first, second, rest = layout.order[:count], layout.order[count : 2 * count], layout.order[2 * count :]
    order = torch.cat([first[ranks], second[ranks], rest])
    return replace(layout, order=order, columns=layout.columns[ranks])


def plane_tables(tables: tuple[Tensor, Tensor], layout: RopeLayout) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (T, F) of the planes, in the order of ``layout``."""
    cos, sin = (table[:, layout.columns] for table in tables)
    return cos, sin if layout.sign == 1 else sin * layout.sign


def unrotate(x: Tensor, tables: tuple[Tensor, Tensor], layout: RopeLayout, weight: Tensor | None) -> Tensor:
    """Return contents before rotation and gain, (…, T, D) in the order of ``layout``."""
    return turned_back(x, *turns_back(*plane_tables(tables, layout)), layout, weight)


def turns_back(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines (T, F) that undo those of a model, which may have scaled them."""
    square = cos.square() + sin.square()
    return cos / square, -sin / square


def turned_back(x: Tensor, cos: Tensor, sin: Tensor, layout: RopeLayout, weight: Tensor | None) -> Tensor:
    """Do what `unrotate` does, given what `turns_back` gives."""
    return rotate_by(layout.ordered(x if weight is None else x / weight), cos, sin, "half")


def table_angles(cos: Tensor, sin: Tensor) -> Tensor:
    """Return each plane's signed angle (F,), in radians per position, from tables (T, F) of positions 0, 1, 2, …."""
    turns = torch.complex(cos.double(), sin.double())
    if len(turns) < 2:
        return cos.new_zeros(cos.shape[-1])
    steps = (turns[1:] * turns[:-1].conj()).angle().sum(0)
    whole = (turns[-1] * turns[0].conj()).angle()
    # The last position's angle is the precise one; the steps only say how many full turns came before it.
    total = whole + 2 * math.pi * ((steps - whole) / (2 * math.pi)).round()
    return (total / (len(turns) - 1)).to(cos.dtype)
