"""`lanemq why`: one sentence per group that says why a key does not move. `lanemq key` shows the figures behind it."""

import click

from lanemq.cli.commands.key import group_document
from lanemq.cli.key_facts import facts_of
from lanemq.cli.options import asks_server
from lanemq.cli.output import harmless, show


@click.command()
@click.argument("key")
@click.option("--topic", help="Where to look; without it, in the one topic that has messages of the key.")
@click.option("--group", help="Only this group; without it, every group that reads the topic.")
@asks_server
def why(key: str, topic: str | None, group: str | None, server: str, as_json: bool) -> None:
    """Say why KEY does not move: what its first unfinished message waits for."""
    facts = facts_of(key, topic, group, server)
    place = f"key {key}, queue {facts.queue.queue_id} of {facts.queue.topic}"
    show(
        as_json,
        lambda: {each.group: group_document(each) for each in facts.groups},
        *(harmless(f"{place}, group {each.group}: waits for {each.waits_for}") for each in facts.groups),
        *([] if facts.groups else [harmless(f"{place}: no group reads this topic")]),
    )
