"""Names that annotations share; for type checkers only, so that numpy is not loaded.

if TYPE_CHECKING:
    from subgraph.types import Array
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
