"""What a process frees stays its own, so that the next large answer costs no new pages."""

import subprocess
import sys

import pytest

from lanemq.net.serving.freed_memory import keep_freed_memory

ANSWERS = """
import resource, sys
from lanemq.net.serving.freed_memory import keep_freed_memory

def answer():
    parts = [bytes([1]) * 65_536 for _ in range(64)]
    body = b"".join(parts)
    return len(body[1:])

kept = sys.argv[1] == "kept" and keep_freed_memory()
for _ in range(5):
    answer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    answer()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_made(how: str) -> tuple[bool, int]:
    """By 20 answers of 4 MiB, which are 20,480 pages without their copies."""
    done = subprocess.run([sys.executable, "-c", ANSWERS, how], capture_output=True, text=True, check=True, timeout=60)
    kept, pages = done.stdout.split()
    return kept == "True", int(pages)


def test_large_answers_one_after_the_other_take_the_same_pages() -> None:
    kept, pages = pages_made("kept")
    if not kept:
        pytest.skip("this libc keeps memory in its own way")
    assert pages < 2_000 < pages_made("plain")[1]


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_glibc_in_the_environment_are_kept(name: str) -> None:
    assert not keep_freed_memory({name: "x"})
