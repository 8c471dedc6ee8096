"""Every request to a client process ends, even if the process dies."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.clients import ClientError, Listening
from interop.harness import Harness
from interop.harness_client import HarnessMember

CHILD = """
import json, os, sys
print(json.dumps({"event": "ready"}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    reply = {"id": request["id"]}
    if request["do"] == "die":
        os._exit(1)
    if request["do"] == "refuse":
        reply["error"] = "Refused: as requested"
    elif request["do"] == "consumer.start":
        seen = {"topic": "t", "queue": 0, "offset": 7, "body": "k:1", "properties": {}}
        turn = {"event": "turn", "name": request["name"], "turn": 1, "messages": [seen], "at_us": 5}
        print(json.dumps(turn), flush=True)
        reply["ok"] = "client@1"
    elif request["do"] == "consumer.release":
        end = {"event": "end", "name": request["name"], "turn": 1, "verdict": "success", "at_us": 9}
        print(json.dumps(end), flush=True)
        reply["ok"] = True
    else:
        reply["ok"] = request["value"]
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    started = Harness([sys.executable, "-c", CHILD], tmp_path / "log")
    yield started
    started.close()


def test_a_request_gets_its_own_answer(harness: Harness) -> None:
    assert [harness.call("echo", value=i) for i in range(3)] == [0, 1, 2]


def test_a_refusal_carries_the_clients_own_text(harness: Harness) -> None:
    with pytest.raises(ClientError, match="Refused: as requested"):
        harness.call("refuse")


def test_a_request_whose_process_dies_fails_instead_of_waiting(harness: Harness) -> None:
    with pytest.raises(ClientError, match="ended before it answered"):
        harness.call("die")
    with pytest.raises(ClientError):
        harness.call("echo", value=1)


def test_a_killed_process_refuses_further_requests(harness: Harness) -> None:
    harness.kill()
    with pytest.raises(ClientError, match="has ended"):
        harness.call("echo", value=1)


def test_a_process_that_never_gets_ready_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="did not start"):
        Harness([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log")


def test_a_turn_is_known_from_its_start_and_completed_by_its_end(harness: Harness) -> None:
    member = HarnessMember(harness, "g", "t", Listening(), owned=False)
    assert [(turn.body, turn.ended_us) for turn in member.wait(lambda turns: len(turns) == 1)] == [("k:1", None)]
    with pytest.raises(TimeoutError, match="k:1=None"):
        member.wait(lambda turns: turns[0].ended_us is not None, within=0.05)
    member.release()
    done = member.wait(lambda turns: turns[0].ended_us is not None)
    assert (done[0].started_us, done[0].ended_us, done[0].verdict) == (5, 9, "success")
