"""The results page of `make bench-peers` says where LaneMQ is behind, and changes nothing else on the page."""

from typing import Any

from benchmarks.peers.goals import judged, table
from benchmarks.peers.report import BEGIN, END, behind, busy, replaced, section
from benchmarks.peers.rounds import figures


def record(contender: str, value: float, **more: Any) -> dict[str, Any]:
    common = {"path": "consume", "mode": "relaxed", "bytes": 100, "unit": "msg/s", "verdict": "pass"}
    measured = {"client_cpu_us": 1.5, "server_cpu_us": 0.5, "load": 1.0, "time": 1_790_000_000}
    return {**common, **measured, "contender": contender, "value": value, **more}


def latency(contender: str, p50: float, p99: float) -> dict[str, Any]:
    return record(contender, p50, path="latency 1000/s", unit="ms", bytes=0, p99=p99)


def test_a_path_on_which_another_is_faster_gets_a_sentence_with_the_ratio() -> None:
    (sentence,) = behind(figures([record("LaneMQ", 100.0), record("confluent-kafka", 250.0), record("aiokafka", 50.0)]))
    assert "confluent-kafka 2.5×" in sentence
    assert "aiokafka" not in sentence


def test_a_path_on_which_lanemq_is_first_or_even_gets_none() -> None:
    assert behind(figures([record("LaneMQ", 100.0), record("confluent-kafka", 101.0), record("aiokafka", 50.0)])) == []


def test_for_times_and_sizes_less_is_better() -> None:
    rounds = [record("LaneMQ", 311, path="disk", unit="B"), record("confluent-kafka", 116, path="disk", unit="B")]
    (sentence,) = behind(figures(rounds))
    assert "bytes on disk per message" in sentence
    assert "116 B against 311 B" in sentence


def test_a_worse_tail_is_named_although_the_median_is_better() -> None:
    (sentence,) = behind(figures([latency("LaneMQ", 1.0, 20.0), latency("NATS JetStream", 2.0, 5.0)]))
    assert "p99 of NATS JetStream is shorter" in sentence


def test_the_table_has_a_dash_for_a_missing_figure_and_marks_the_best() -> None:
    rounds = [record("LaneMQ", 100.0), record("aiokafka", 50.0), record("aiokafka", 7.0, bytes=1000)]
    text = section(figures(rounds), rounds, ["images/x.png"])
    assert "| **100 (100)** | 50 (50) |" in text
    assert "| – | 7 (7) |" in text
    assert "1.5 + 0.5" in text
    assert "![x](images/x.png)" in text


def test_a_round_that_broke_its_order_is_named() -> None:
    rounds = [record("LaneMQ", 100.0, verdict="3 messages out of order or lost")]
    assert "LaneMQ, consume in order" in section(figures(rounds), rounds, []).partition("What did not work")[2]


def test_results_of_a_busy_machine_carry_a_warning() -> None:
    assert busy([1.0, 2.5, 9.0], 2) == []
    (warning,) = busy([3.0, 12.0, 14.0], 2)
    assert "median load 12 on 2 cores" in warning


def test_a_new_section_replaces_the_old_one_and_leaves_the_rest() -> None:
    page = f"# Title\n\ntext\n\n{BEGIN}\nold\n{END}\n\n## After\n"
    assert replaced(page, "new") == f"# Title\n\ntext\n\n{BEGIN}\nnew\n{END}\n\n## After\n"
    assert replaced("# Title\n", "new") == f"# Title\n\n{BEGIN}\nnew\n{END}\n"


def test_a_goal_is_judged_by_the_rival_that_it_names() -> None:
    rounds = [record("LaneMQ", 100.0), record("confluent-kafka", 80.0), record("aiokafka", 50.0)]
    reached = {row.rival: (round(row.times, 2), row.reached) for row in judged(figures(rounds))}
    assert reached == {"confluent-kafka": (1.25, True), "aiokafka": (2.0, False)}


def test_a_tail_is_judged_by_the_best_of_the_others() -> None:
    rounds = [latency("LaneMQ", 1.0, 5.0), latency("NATS JetStream", 2.0, 10.0), latency("Redis Streams", 3.0, 4.0)]
    (row,) = judged(figures(rounds))
    assert (row.rival, row.times, row.reached) == ("Redis Streams", 1.25, False)
    assert "| ≤ 1× the best other (Redis Streams) | 1.25× | no |" in table([row])[-1]
