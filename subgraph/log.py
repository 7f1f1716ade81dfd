"""The log of progress and warnings, which `cli` shows on standard error."""

from __future__ import annotations

import logging

log = logging.getLogger("subcut")
