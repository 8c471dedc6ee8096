"""The benchmark of effects, with tiny numbers: it runs, and reports what it should."""

import json

import pytest
from benchmarks import effects


@pytest.mark.extended
def test_the_benchmark_reports_both_ways(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"ROUNDS": 1, "BATCHED": 400, "SINGLE": 50, "TRANSACTIONS": 5}.items():
        monkeypatch.setattr(effects, name, value)
    effects.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"].rpartition("/")[2] for line in lines] == ["batches", "one_by_one", "transaction"]
    assert all(line["value"] > 0 and line["plain"] > 0 for line in lines)
