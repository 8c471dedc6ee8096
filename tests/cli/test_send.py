"""`lanemq send`: what is stored, what is said about it, and what is refused."""

import json
from pathlib import Path

from conftest import Run  # type: ignore[import-not-found]

from lanemq.testing.embedded import EmbeddedBroker
