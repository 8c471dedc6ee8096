"""How `make check` and `make test` choose and divide tests (`tests/fast_tests.py`, `tests/conftest.py`)."""

import time
from types import SimpleNamespace

import pytest
from tests import fast_tests
from tests.fast_tests import BROKEN, FastTests


@pytest.mark.parametrize(
    ("slept", "worked", "said"),
    [
        (0.0, 0.1, []),
        (0.1, 0.1, []),
        (0.3, 0.1, ["sleeps for 0.30 s"]),
        (0.0, 0.6, ["takes 0.60 s of processor time"]),
    ],
)
def test_a_test_that_sleeps_or_works_too_long_is_named(
    slept: float, worked: float, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([5.0, 5.0 + worked])
    monkeypatch.setattr(fast_tests, "processor_time", lambda: next(times))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    item = SimpleNamespace(user_properties=[])
    call = FastTests().pytest_runtest_call(item)  # type: ignore[arg-type]
    next(call)
    time.sleep(slept)
    with pytest.raises(StopIteration):
        next(call)
    assert item.user_properties == [(BROKEN, each) for each in said]


@pytest.fixture(scope="module")
def shared() -> str:
    return "made once"


@pytest.mark.usefixtures("shared")
def test_tests_that_share_a_fixture_of_their_module_run_in_one_process(request: pytest.FixtureRequest) -> None:
    group = request.node.get_closest_marker("xdist_group")
    assert group is not None
    assert group.args == ("tests/scripts/test_fast_tests.py",)


def test_a_test_that_shares_nothing_may_run_in_any_process(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("xdist_group") is None
