"""RocketMQ's official Python client 5.x as a program: `client.py ROLE name=value ...`.

Roles: `send` sends the lines of its input, one JSON object each; `push` and `simple` print each message that they get.
The roles end when their input ends. Each line of the output is a JSON object. It runs in an environment of its own,
because the client's package has the name of another one.
"""

import json
import os
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)


def say(**what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def configuration(options):
    credentials = Credentials(options.get("user", ""), options.get("secret", ""))
    return ClientConfiguration(options["server"], credentials)


def described(message):
    return {
        "got": message.body.decode(),
        "key": message.message_group,
        "attempt": message.delivery_attempt,
        "id": message.message_id,
        "tag": message.tag,
        "properties": dict(message.properties),
        "at": time.time(),
    }


def send(options):
    producer = Producer(configuration(options), (options["topic"],), tls_enable="tls" in options)
    producer.startup()
    say(ready=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        message = Message()
        message.topic, message.body = options["topic"], wanted["body"].encode()
        if wanted.get("key"):
            message.message_group = wanted["key"]
        if wanted.get("tag"):
            message.tag = wanted["tag"]
        for name, text in wanted.get("properties", {}).items():
            message.add_property(name, text)
        try:
            receipt = producer.send(message)
            say(sent=wanted["body"], id=receipt.message_id)
        except Exception as error:  # noqa: BLE001 - reported
            say(failed=wanted["body"], why=str(error))
    producer.shutdown()
    say(ended=True)


class Listener(MessageListener):
    def __init__(self, options):
        self._failing = set(filter(None, options.get("fail", "").split(",")))
        self._always = options.get("fails") == "always"
        self._failed = set()
        self._seconds = float(options.get("seconds", 0))

    def consume(self, message):
        what = described(message)
        say(**what)
        time.sleep(self._seconds)
        body = what["got"]
        if body in self._failing and (self._always or body not in self._failed):
            self._failed.add(body)
            return ConsumeResult.FAILURE
        say(done=body, at=time.time())
        return ConsumeResult.SUCCESS


def push(options):
    tags = FilterExpression(options["tags"]) if "tags" in options else FilterExpression()
    consumer = PushConsumer(
        configuration(options),
        options["group"],
        Listener(options),
        {options["topic"]: tags},
        tls_enable="tls" in options,
    )
    consumer.startup()
    say(ready=True)
    sys.stdin.read()
    consumer.shutdown()
    say(ended=True)


def simple(options):
    tags = FilterExpression(options["tags"]) if "tags" in options else FilterExpression()
    consumer = SimpleConsumer(
        configuration(options),
        options["group"],
        {options["topic"]: tags},
        await_duration=int(options.get("wait", 3)),
        tls_enable="tls" in options,
    )
    consumer.startup()
    say(ready=True)
    stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    ignored = set(filter(None, options.get("ignore", "").split(",")))
    while not stopping.is_set():
        messages = consumer.receive(int(options.get("batch", 3)), int(options.get("invisible", 10))) or ()
        for message in messages:
            what = described(message)
            say(**what)
            if what["got"] in ignored:
                ignored.discard(what["got"])
                continue
            try:
                consumer.ack(message)
                say(done=what["got"], at=time.time())
            except Exception as error:  # noqa: BLE001 - reported
                say(refused=what["got"], why=str(error))
    consumer.shutdown()
    say(ended=True)


def main():
    role, *words = sys.argv[1:]
    options = dict(word.partition("=")[::2] for word in words)
    {"send": send, "push": push, "simple": simple}[role](options)
    sys.stdout.flush()
    os._exit(0)  # the client leaves threads behind that do not end


if __name__ == "__main__":
    main()
