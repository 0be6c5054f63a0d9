"""What `possym.scores` does in bands, in one pass on a GPU: Triton kernels, and whether they run.

`jit`, `device_context`, `triton_available` and `in_rows` serve the kernels of `possym.ensembles` too.
"""

from possym.kernels.arithmetic import PTX, device_context, jit, tl, triton
from possym.kernels.products import (
    Products,
    as_products,
    halves,
    product_sums,
    products_of_keys,
    scale_of,
    takes_products,
    tile_sums,
)
from possym.kernels.swaps import head_sums, in_rows, plane_sums, supported, swap_terms, triton_available
from possym.kernels.vectors import attend_keys, head_values

__all__ = [
    "PTX",
    "Products",
    "as_products",
    "attend_keys",
    "device_context",
    "halves",
    "head_sums",
    "head_values",
    "in_rows",
    "jit",
    "plane_sums",
    "product_sums",
    "products_of_keys",
    "scale_of",
    "supported",
    "swap_terms",
    "takes_products",
    "tile_sums",
    "tl",
    "triton",
    "triton_available",
]
