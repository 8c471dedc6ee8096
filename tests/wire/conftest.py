"""Recorded vectors for the codec tests."""

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """What Java wrote; `origin` in the file says how it was obtained."""
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "vectors.json").read_text("utf-8"))
    return loaded
