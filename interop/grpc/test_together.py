"""The official clients of all languages in one group: the order of a key holds over all of them."""

from collections import defaultdict
from pathlib import Path

from interop.grpc.conftest import command_of, staged
from interop.grpc.programs import CLIENTS, ONLY_SIMPLE, messages
from interop.grpc.test_grpc import finished
from interop.ports import eventually

KEYS_EACH, EACH, SECONDS = 6, 15, 0.05


def test_all_languages_in_one_group(tmp_path: Path) -> None:
    commands = {language: command_of(language) for language in sorted(CLIENTS)}
    with staged(tmp_path, "python", commands["python"]) as scene:
        consumers = [
            scene.client("simple", command, batch=1)
            if language in ONLY_SIMPLE
            else scene.client("push", command, seconds=SECONDS)
            for language, command in commands.items()
        ]
        keys = {language: [f"{language}-{number}" for number in range(KEYS_EACH)] for language in commands}
        senders = {language: scene.client("send", command) for language, command in commands.items()}
        for number in range(EACH):
            for language, sender in senders.items():
                sender.send(messages(keys[language], 1, first=number))
        count = EACH * KEYS_EACH * len(commands)
        eventually(lambda: len(finished(*consumers)) == count, 120, f"all {count} messages processed")
        assert all(finished(consumer) for consumer in consumers), "each client has work"
        ends: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        for line in (line for consumer in consumers for line in consumer.lines if "done" in line):
            key, _, number = line["done"].partition(":")
            ends[key].append((line["at"], int(number)))
        assert {key: [number for _, number in sorted(found)] for key, found in ends.items()} == {
            key: list(range(EACH)) for of_language in keys.values() for key in of_language
        }
        scene.verdict()
