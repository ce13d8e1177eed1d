"""Options shared by all tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-mutations",
        type=int,
        default=20_000,
        help="mutations of whole directories in tests/test_hostile.py (make fuzz: a million)",
    )
    parser.addoption(
        "--kill-rounds",
        type=int,
        default=10,
        help="times that a store under load is killed in tests/test_kill.py (make soak: 200)",
    )
