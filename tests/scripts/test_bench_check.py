"""`make bench-check` fails if a path costs too much, and only then."""

import json
from typing import Any

import pytest
from benchmarks import check

BASELINE = {"send": 2.0, "consume": 4.0}


def test_ratios_within_the_allowance_pass() -> None:
    assert check.too_slow(BASELINE, {"send": 2.29, "consume": 1.0}) == []


def test_a_ratio_beyond_the_allowance_is_named_with_its_figures() -> None:
    (wrong,) = check.too_slow(BASELINE, {"send": 2.4, "consume": 4.0})
    assert wrong == "send costs 2.4 reference loops, 20% more than the baseline 2.0"


def test_a_path_that_only_one_of_the_two_has_is_named() -> None:
    assert len(check.too_slow(BASELINE, {"send": 2.0, "new": 1.0})) == 2


@pytest.mark.parametrize(("rounds", "fails"), [([9.0, 2.0], False), ([9.0, 9.0, 9.0], True)])
def test_a_path_is_measured_again_before_the_check_fails(
    rounds: list[float], fails: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(rounds)
    (tmp_path / "baseline.json").write_text(json.dumps({"send": 2.0}))
    monkeypatch.setattr(check, "BASELINE", tmp_path / "baseline.json")
    monkeypatch.setattr(check, "VARIANT", "compiled")
    monkeypatch.setattr(check, "_measured", lambda: {"send": left.pop(0)})
    if fails:
        with pytest.raises(SystemExit, match="send costs 9"):
            check.main()
    else:
        check.main()
    assert left == []


def test_the_committed_baseline_names_the_paths_that_are_measured() -> None:
    assert {"consume, 100 keys", "consume, 10,000 keys", "send_many", "submit"} <= json.loads(
        check.BASELINE.read_text()
    ).keys()
