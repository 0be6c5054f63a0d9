"""Progress bars that can be seen: drawn in a page of JupyterLab, text on standard error wherever no page is open."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or "JPY_SESSION_NAME" not in os.environ:  # papermill and the build log text, and show no widget
    from tqdm import tqdm
else:
    from tqdm.auto import tqdm

__all__ = ["tqdm"]
