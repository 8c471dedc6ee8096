"""Types that are pickled by value decode the same in another process."""

import base64
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from pyspark.cloudpickle import cloudpickle

from lanemq.pipelines.stages.transitions.carried_types import carry_types

ELSEWHERE = """
import base64, pickle, sys, msgspec
load = lambda: pickle.loads(base64.b64decode(sys.argv[1]))
kind, again = load(), load()
assert kind is again, "another class every time"
for message in sys.argv[2:]:
    try:
        print(repr(msgspec.json.Decoder(kind).decode(message)))
    except msgspec.ValidationError as error:
        print("refused")
"""


def types() -> list[Any]:
    """Made in a function, so that another process cannot import them."""

    @dataclass
    class Plain:
        number: int
        items: list[str] = field(default_factory=list)

    class Line(msgspec.Struct):
        item: str
        count: int = 1

    class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
        number: int
        of_lines: list[Line] = msgspec.field(default_factory=list)

    class Below(Strict, kw_only=True):
        extra: str

        def shout(self) -> str:
            return self.extra.upper()

    return [Plain, Line, Strict, Below]


def elsewhere(kind: type, messages: list[str]) -> list[str]:
    command = [sys.executable, "-c", ELSEWHERE, base64.b64encode(cloudpickle.dumps(kind)).decode(), *messages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def here(kind: type, message: str) -> str:
    try:
        return repr(msgspec.json.Decoder(kind).decode(message))
    except msgspec.ValidationError:
        return "refused"


@pytest.mark.parametrize("at", range(4), ids=["dataclass", "struct", "struct of structs", "subclass"])
def test_a_type_of_the_users_file_decodes_the_same_in_an_executor(at: int) -> None:
    carry_types()
    carry_types()
    kind = types()[at]
    full = '{"number": 1, "item": "a", "extra": "x", "ofLines": [{"item": "b"}]}'
    messages = ['{"number": 1}', '{"item": "a"}', '{"number": 1, "extra": "x"}', "{}", full]
    decoded = [each.rpartition(".")[2] for each in elsewhere(kind, messages)]
    assert decoded == [here(kind, message).rpartition(".")[2] for message in messages]


def test_methods_of_a_type_are_pickled_too() -> None:
    carry_types()
    below = cloudpickle.loads(cloudpickle.dumps(types()[3]))
    assert below(number=1, extra="x").shout() == "X"
