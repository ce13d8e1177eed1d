"""Requests for our pages, and the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

ROUTES: Final[list[tuple[str, Callable[..., Any]]]] = []
