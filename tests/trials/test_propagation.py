"""The candidate's values of a region, sent on through the rest of the model by the reference."""

from __future__ import annotations
