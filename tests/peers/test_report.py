"""The results page of `make bench-peers` says where LaneMQ is behind, and changes nothing else on the page."""

from typing import Any

import pytest
from benchmarks.peers.goals import FLATS, judged, table
from benchmarks.peers.report import BEGIN, END, behind, busy, replaced, section, shown
from benchmarks.peers.rounds import Case, figures, troubles


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


def test_servers_of_grpc_clients_have_a_table_of_their_own() -> None:
    front, proxy = "LaneMQ gRPC front", "Apache proxy (gRPC)"
    rounds = [
        record("LaneMQ", 100.0),
        record(front, 600.0, path="grpc send", server_cpu_us=598.0),
        record(proxy, 700.0, path="grpc send", server_cpu_us=1539.0),
        record(front, 0.86, path="grpc killed consumer", unit="s"),
        record(proxy, 20.0, path="grpc killed consumer", unit="s or more"),
        record(proxy, 5.0, path="grpc lost answer", unit="s", verdict="lost 1"),
    ]
    good = rounds[:-1]
    main, _, own = section(figures(good), rounds, []).partition("### RocketMQ's gRPC clients")
    assert "gRPC" not in main
    assert "600 (600), 598 µs with the broker | 700 (700), 1,539 µs with the broker |" in own
    assert "| 0.86 s | 20 s or more |" in own
    assert "| – | lost 1 (1 of 1 round" in own


@pytest.mark.parametrize("contender", ["LaneMQ", "confluent-kafka"])
def test_a_round_that_lost_messages_stands_in_the_table_whoever_lost_them(contender: str) -> None:
    good = [record("LaneMQ", 100.0), record("confluent-kafka", 90.0)]
    text = section(figures(good), [*good, record(contender, 500.0, verdict="lost 3 of 100,000")], [])
    assert "; lost 3 of 100,000 (1 of 2 rounds) |" in text
    assert f"{contender}, consume in order" in text.partition("What did not work")[2]


def test_a_contender_without_a_good_round_has_its_verdict_for_a_figure() -> None:
    rounds = [record("LaneMQ", 100.0), {**record("aiokafka", 1.0), "verdict": "2 of 50 out of order"}]
    assert "| 100 (100) | 2 of 50 out of order (1 of 1 round) |" in section(figures(rounds), rounds, [])


def test_the_words_of_a_failed_round_are_listed() -> None:
    failed = {key: each for key, each in record("aiokafka", 1.0).items() if key not in ("value", "unit", "verdict")}
    rounds = [record("LaneMQ", 100.0), {**failed, "failed": "no memory"}]
    assert "failed (1 of 1 round): no memory." in section(figures(rounds), rounds, [])


def test_a_short_timed_part_is_named() -> None:
    rounds = [record("LaneMQ", 100.0, seconds=0.2), record("aiokafka", 50.0, seconds=2.1)]
    text = section(figures(rounds), rounds, [])
    assert "1 are shorter than 1.5 s: LaneMQ, consume in order" in text


def test_rows_of_several_versions_name_the_paths_of_each() -> None:
    rounds = [
        record("LaneMQ", 1.0, version="aaa", group="consuming"),
        record("LaneMQ", 1.0, version="bbb", group="slow", path="slow handler"),
    ]
    assert "version aaa (consuming); bbb (slow)," in section(figures(rounds), rounds, [])


def test_results_of_a_busy_machine_carry_a_warning() -> None:
    assert busy([1.0, 2.5, 9.0], 2) == []
    (warning,) = busy([3.0, 12.0, 14.0], 2)
    assert "median load 12 on 2 cores" in warning


def test_a_new_section_replaces_the_old_one_and_leaves_the_rest() -> None:
    page = f"# Title\n\ntext\n\n{BEGIN}\nold\n{END}\n\n## After\n"
    assert replaced(page, "new") == f"# Title\n\ntext\n\n{BEGIN}\nnew\n{END}\n\n## After\n"
    assert replaced("# Title\n", "new") == f"# Title\n\n{BEGIN}\nnew\n{END}\n"


def rows(records: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Title and goal to what was measured and reached, of the goals that were measured."""
    found = judged(figures(records), troubles(records))
    return {f"{row.title} {row.goal}": (row.measured, row.reached) for row in found if row.measured != "–"}


CONSUME = "consume, handler uses event and message, 100 B"


def test_a_goal_is_judged_by_the_rival_that_it_names() -> None:
    rounds = 3 * [record("LaneMQ", 100.0), record("confluent-kafka", 80.0), record("aiokafka", 50.0)]
    assert rows(rounds) == {
        f"{CONSUME} ≥ 0.8× confluent-kafka": ("1.25×", "yes"),
        f"{CONSUME} ≥ 5× aiokafka": ("2.00×", "no"),
    }


def test_a_goal_is_not_reached_by_fewer_than_three_rounds() -> None:
    two = 2 * [record("LaneMQ", 100.0), record("confluent-kafka", 80.0), record("aiokafka", 50.0)]
    assert list(rows(two).values()) == [("1.25×", "only 2 rounds"), ("2.00×", "no (only 2 rounds)")]
    three_of_ours = [*two, record("LaneMQ", 100.0)]
    assert rows(three_of_ours)[f"{CONSUME} ≥ 0.8× confluent-kafka"] == ("1.25×", "only 2 rounds")


def test_a_goal_is_not_reached_if_a_round_of_ours_lost_messages() -> None:
    rounds = 4 * [record("LaneMQ", 100.0), record("confluent-kafka", 80.0)]
    rounds.append(record("LaneMQ", 100.0, verdict="lost 3 of 100,000"))
    assert rows(rounds) == {f"{CONSUME} ≥ 0.8× confluent-kafka": ("1.25×", "no: lost 3 of 100,000 (1 of 5 rounds)")}


def test_send_many_is_compared_with_the_faster_of_two_ways_to_send() -> None:
    ours, theirs = record("LaneMQ", 120.0, path="send batch"), record("confluent-kafka", 80.0, path="send batch")
    rounds = 3 * [ours, theirs, record("confluent-kafka (linger 50)", 110.0, path="send pipelined")]
    rival = "confluent-kafka (linger 50), a callback each"
    assert rows(rounds) == {f"`send_many`, 100 B ≥ 1.2× {rival}": ("1.09×", "no")}


def test_a_tail_beside_a_rate_is_shown_and_less_of_it_is_better() -> None:
    clients: dict[str, Any] = {"path": "send clients", "unit": "msg/s"}
    rounds = 3 * [record("LaneMQ", 60.0, p99=9.0, **clients), record("confluent-kafka", 100.0, p99=6.0, **clients)]
    assert rows(rounds) == {
        "50 clients, one send at a time each, 100 B ≥ 1× confluent-kafka": ("0.60×", "no"),
        "50 clients, p99 of a send, 100 B ≤ 1× confluent-kafka": ("1.50×", "no"),
    }
    ours = figures(rounds)[Case("send clients", "relaxed", 100, "LaneMQ")]
    assert shown(ours) == "60 (60), p99 9 ms"


def test_a_consumer_with_better_settings_is_the_rival() -> None:
    rounds = 3 * [record("LaneMQ", 60.0), record("confluent-kafka", 80.0), record("confluent-kafka (prefetch)", 100.0)]
    assert rows(rounds) == {f"{CONSUME} ≥ 0.8× confluent-kafka (prefetch)": ("0.60×", "no")}


def test_a_tail_is_judged_by_the_best_of_the_others() -> None:
    rounds = 3 * [latency("LaneMQ", 1.0, 5.0), latency("NATS JetStream", 2.0, 10.0), latency("Redis Streams", 3.0, 4.0)]
    found = rows([{**each, "bytes": 100} for each in rounds])
    assert found == {"p99 from send to handler at 1,000/s, 100 B ≤ 1× the best other (Redis Streams)": ("1.25×", "no")}


@pytest.mark.parametrize(("last", "growth", "reached"), [(1.4, "1.27×", "yes"), (2.1, "1.73×", "no")])
def test_a_cost_that_must_not_grow_is_judged_by_its_largest_and_smallest(
    last: float, growth: str, reached: str
) -> None:
    flat = FLATS[-1]
    costs = [1.2, 1.0, 1.1, last]  # of the client; the server's 0.5 is added
    rounds = 3 * [
        record("LaneMQ", 1.0, path=path, client_cpu_us=cost) for path, cost in zip(flat.paths, costs, strict=True)
    ]
    ((measured, said),) = rows(rounds).values()
    assert (measured.split()[0], said) == (growth, reached)


def test_goals_that_were_not_measured_say_so() -> None:
    text = table(judged(figures([record("LaneMQ", 100.0)])))
    assert f"| {CONSUME} | ≥ 0.8× confluent-kafka | – | no figure of confluent-kafka |" in text
    assert "| bytes on disk for a message of 100 B | ≤ 200 | – | no figure of LaneMQ |" in text
