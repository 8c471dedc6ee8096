"""One job for Apache's C++ client: `client.py ADDRESS JOB`. The job and the lines that it prints are described in
../README.md.

PyPI's `rocketmq` 0.4.4 contains librocketmq, the C++ client, and a thin wrapper of its C interface: the only published
build of it. (Go, Node and Rust have published packages; the C++ client is otherwise built from source.)
"""

import json
import os
import sys
import threading
import zlib
from typing import Any

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    MessageModel,
    Producer,
    PushConsumer,
    RecvMessage,
)
from rocketmq.ffi import dll  # type: ignore[import-not-found]

CONSUME_SUCCESS, RECONSUME_LATER = 0, 1


def say(what: str, value: object) -> None:
    os.write(1, json.dumps({what: value}).encode() + b"\n")


def send(address: str, job: dict[str, Any]) -> None:
    producer = Producer("cpp-senders")
    producer.set_namesrv_addr(address)
    producer.start()
    for each in job["messages"]:
        message = Message(job["topic"])
        message.set_body(each["body"])
        message.set_keys(each["body"])
        message.set_property("__SHARDINGKEY", each["key"])
        if each.get("tag"):
            message.set_tags(each["tag"])
        if each.get("delay"):
            message.set_delay_time_level(each["delay"])
        result = producer.send_orderly(message, zlib.crc32(each["key"].encode()) & 0x7FFFFFFF)
        say("sent", {"body": each["body"], "queue": None, "offset": result.offset, "id": result.msg_id})
    producer.shutdown()


def consume(address: str, job: dict[str, Any]) -> None:
    failing, guard = set(job["fail"]), threading.Lock()
    model = MessageModel.BROADCASTING if job["broadcast"] else MessageModel.CLUSTERING
    consumer = PushConsumer(job["group"], orderly=job["orderly"], message_model=model)
    consumer.set_namesrv_addr(address)
    consumer.set_instance_name(str(os.getpid()))

    def handle(_: object, handle_of_message: object) -> int:
        message = RecvMessage(handle_of_message)
        body = message.body.decode()
        seen = {"body": body, "queue": message.queue_id, "offset": message.queue_offset}
        with guard:
            say("got", {**seen, "attempts": message.reconsume_times})
            if body in failing:
                failing.discard(body)
                return RECONSUME_LATER
            return CONSUME_SUCCESS

    # Not by `subscribe`: a failure of its callback is reported to the library as a success.
    dll.Subscribe(consumer._handle, job["topic"].encode(), job["tags"].encode())
    consumer._register_callback(handle)
    consumer.start()
    say("ready", True)
    sys.stdin.read()
    consumer.shutdown()


def main() -> None:
    address, job = sys.argv[1], json.loads(sys.argv[2])
    if job["do"] == "send" and not job.get("trace"):
        send(address, job)
    elif job["do"] == "consume":
        consume(address, job)
    else:
        say("unsupported", job["do"])
    os._exit(0)  # the library's threads do not always end


if __name__ == "__main__":
    main()
