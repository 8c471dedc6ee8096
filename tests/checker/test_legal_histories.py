"""The checker raises no alarm for these unusual but correct histories."""

from collections.abc import Callable

import pytest

from lanemq.checker.checking import CheckOptions
from lanemq.checker.verdict import Report, Verdict

Judge = Callable[..., Report]

LEGAL = {
    "queues of the same number at two brokers": (
        "p send m0 k\np send n0 j\np acked m0 k 0 broker=a\np acked n0 j 0 broker=b\n"
        "a turn 0 k id=m0 broker=a\nb turn 0 j id=n0 broker=b\na end 0 k ok broker=a\nb end 0 j ok broker=b\n"
        "a commit 1 broker=a\nb commit 1 broker=b"
    ),
    "a former owner at a broker without epochs commits after the next one has begun": (
        "a recovered 0 clean=0 alive=5\na turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\n"
        "b recovered 0 clean=0 alive=55\na commit 2\nb turn 0 k\nb end 0 k ok\nb turn 1 k\nb end 1 k ok\nb commit 2"
    ),
    "a member finds an older offset after a fail-over, and begins there": (
        "a turn 0 k\na end 0 k ok\na commit 1\na turn 1 k\na end 1 k ok\na commit 2\n"
        "b recovered 1 clean=0 alive=65\nb turn 1 k\nb end 1 k ok\nb turn 2 k\nb end 2 k ok\nb commit 3\n"
        "a recovered 2 clean=0 alive=125\na turn 2 k\na end 2 k ok\na commit 3"
    ),
    "a tag filter leaves out what has other tags or none": (
        "p send m0 k tag=paid\np acked m0 k 0\np send m1 k tag=sent\np acked m1 k 1\np send m2 k\np acked m2 k 2\n"
        "p send m3 k tag=paid\np acked m3 k 3\na granted a 1\na filtered 0 paid||late\na turn 0 k id=m0 epoch=1\n"
        "a end 0 k ok epoch=1\nbroker commit 1 epoch=1\na turn 3 k id=m3 epoch=1\na end 3 k ok epoch=1\n"
        "broker commit 4 epoch=1"
    ),
    "a filter leaves out what was sent before another member subscribed to it": (
        "a granted a 1\na filtered 0 paid\np send m0 k tag=sent\np acked m0 k 0\nbroker subscribed paid||sent\n"
        "broker commit 1 epoch=1\na turn 1 j epoch=1\na end 1 j ok epoch=1"
    ),
    "a filter leaves out what a member that has left had subscribed to": (
        "a granted a 1\na filtered 0 paid\nbroker subscribed *\np send m0 k tag=sent\np acked m0 k 0\n"
        "broker subscribed paid\nbroker commit 1 epoch=1\na turn 1 j epoch=1\na end 1 j ok epoch=1"
    ),
    "a filter leaves out what was sent after a lost member was given up": (
        "a granted a 1\na filtered 0 paid\nbroker subscribed *\np send m0 k tag=paid\np acked m0 k 0\n"
        "broker subscribed paid lost=b\np send m1 k tag=sent\np acked m1 k 1\na turn 0 k id=m0 epoch=1\n"
        "a end 0 k ok epoch=1\nbroker commit 2 epoch=1"
    ),
    "a filter leaves out what neither member subscribed to": (
        "a granted a 1\na filtered 0 paid\nbroker subscribed paid||sent\np send m0 k tag=lost\np acked m0 k 0\n"
        "broker commit 1 epoch=1\na turn 1 j epoch=1\na end 1 j ok epoch=1"
    ),
    "a filter leaves out what a member had subscribed to that a restarted broker does not know yet": (
        "a granted a 1\na filtered 0 paid\nbroker subscribed *\np send m0 k tag=sent\np acked m0 k 0\n"
        "broker2 commit 1 epoch=1\na turn 1 j epoch=1\na end 1 j ok epoch=1"
    ),
    "an owner with more tags leaves out what the former one had left out before a message of its own": (
        "p send m0 k tag=sent\np acked m0 k 0\np send m1 k tag=paid\np acked m1 k 1\na granted a 1\na filtered 0 paid\n"
        "a turn 1 k id=m1 epoch=1\na end 1 k ok epoch=1\na released a 1\nb granted b 2\nb turn 2 j epoch=2\n"
        "b end 2 j ok epoch=2\nbroker commit 3 epoch=2"
    ),
    "a message that a tag filter leaves out is acknowledged late": (
        "p send m0 k tag=sent\na filtered 0 paid\na turn 1 j\na end 1 j ok\na commit 0\na commit 2 asked=60\n"
        "p acked m0 k 0"
    ),
    "a run ends with messages that a tag filter leaves out": (
        "p send m0 k tag=sent\np acked m0 k 0\np send m1 k tag=paid\np acked m1 k 1\na reset 0\na filtered 0 paid\n"
        "a turn 1 k id=m1"
    ),
    "a dead letter is redriven by a person, who records nothing": (
        "p send m0 k\np acked m0 k 0\na turn 0 k id=m0 attempt=1\na end 0 k retry\na dead 0 k attempts=1\n"
        "p send m1 k\np acked m1 k 1\na turn 1 k id=m1\na end 1 k ok\na turn 2 k id=copied copy=1\na end 2 k ok\n"
        "a commit 3"
    ),
    "a group is reset forward past acknowledged messages while its member runs": (
        "p send m0 k\np acked m0 k 0\np send m1 k\np acked m1 k 1\np send m2 k\np acked m2 k 2\nbroker granted a 1\n"
        "a granted a 1\na turn 0 k id=m0 epoch=1\na end 0 k ok epoch=1\na reset 2 epoch=1\nbroker commit 2 epoch=1\n"
        "a turn 2 k id=m2 epoch=1\na end 2 k ok epoch=1\nbroker commit 3 epoch=1\na commit 3 epoch=1 asked=145"
    ),
    "a group is reset forward past acknowledged messages while it has no member": (
        "p send m0 k\np acked m0 k 0\np send m1 k\np acked m1 k 1\np send m2 k\np acked m2 k 2\nbroker granted a 1\n"
        "a granted a 1\na turn 0 k id=m0 epoch=1\na end 0 k ok epoch=1\nbroker commit 1 epoch=1\na released a 1\n"
        "broker released a 1\nbroker reset 2\nbroker granted b 2\nb granted b 2\nb turn 2 k id=m2 epoch=2\n"
        "b end 2 k ok epoch=2\nbroker commit 3 epoch=2"
    ),
    "retention deletes what a killed owner had begun, and the next one begins behind it": (
        "p send m0 k\np acked m0 k 0\np send m1 k\np acked m1 k 1\nbroker granted a 1\na granted a 1\n"
        "a turn 0 k id=m0 epoch=1\nbroker trimmed 1\nbroker granted b 2\nb granted b 2\nb reset 1 epoch=2\n"
        "broker commit 1 epoch=2\nb turn 1 k id=m1 epoch=2\nb end 1 k ok epoch=2\nbroker commit 2 epoch=2"
    ),
    "topic deleted, another of its name begins at offset 0": (
        "p send m0 k\np acked m0 k 0\np send m1 k\np acked m1 k 1\na turn 0 k id=m0\na end 0 k ok\na commit 1\n"
        "broker deleted\np send n0 j\np acked n0 j 0\np send n1 k\np acked n1 k 1\na turn 0 j id=n0\n"
        "a end 0 j ok\na turn 1 k id=n1\na end 1 k ok\na commit 2"
    ),
    "late events about messages of a deleted topic": (
        "p send m0 k\np acked m0 k 0\np send m1 k\np send m2 k\nbroker deleted\np send n0 k\np acked n0 k 0\n"
        "p acked m1 k 1\na turn 0 k id=m0\na end 0 k ok\na commit 1 asked=35\nb turn 0 k id=n0\nb end 0 k ok\n"
        "p send n1 k\np acked n1 k 1\nb turn 1 k id=n1\nb end 1 k ok\nb commit 2"
    ),
    "owner of a deleted topic obeys a reset late": (
        "a granted a 1\np send m0 k\np acked m0 k 0\na turn 0 k epoch=1\na end 0 k ok epoch=1\na commit 1 epoch=1\n"
        "broker deleted\na reset 5 epoch=1\nb granted b 2\np send n0 k\np acked n0 k 0\nb turn 0 k epoch=2\n"
        "b end 0 k ok epoch=2\nb commit 1 epoch=2"
    ),
    "attempts begin again with the next owner": (
        "a turn 0 k attempt=2\na end 0 k retry\nb turn 0 k attempt=1\nb end 0 k retry\na dead 0 k attempts=2"
    ),
    "replay by the next owner": (
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\nb turn 0 k\nb end 0 k ok\n"
        "b turn 1 k\nb end 1 k ok\nb turn 2 k"
    ),
    "killed in a turn, taken over": (
        "a turn 0 k epoch=1\nb granted b 2\nb turn 0 k epoch=2\nb end 0 k ok\nb commit 1 epoch=2"
    ),
    "paused in a turn, result thrown away": (
        "a granted a 1\na turn 0 k epoch=1\nb granted b 2\nb turn 0 k epoch=2\na end 0 k abandoned\nb end 0 k ok"
    ),
    "paused before a turn, result thrown away": (
        "a granted a 1\nb granted b 2\nb turn 0 k epoch=2\na turn 0 k epoch=1\nb end 0 k ok\n"
        "b turn 1 k epoch=2\na end 0 k abandoned\nb end 1 k ok"
    ),
    "parked, passed by the commit, redriven before what is newer": (
        "a turn 0 k\na end 0 k retry\nbroker parked 0 k\na parked 0 k\na parked 1 k\na turn 2 j\na end 2 j ok\n"
        "a commit 3\nbroker redriven 0 k\na turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\na turn 3 k\n"
        "a end 3 k ok\na commit 4"
    ),
    "redrive is continued by the next owner, the message whose removal was lost comes again": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\na commit 2\nbroker redriven 0 k\n"
        "a turn 0 k\na end 0 k ok\nb turn 0 k epoch=2\nb end 0 k ok\nb turn 1 k epoch=2\nb end 1 k ok\n"
        "b turn 2 k epoch=2"
    ),
    "redriven message becomes a dead letter, and the broker comes back without its removal": (
        "a turn 0 k epoch=1\na end 0 k retry epoch=1\nbroker parked 0 k\na parked 0 k\nbroker parked 1 k\n"
        "a parked 1 k\na commit 2 epoch=1\nbroker redriven 0 k 1\na turn 0 k epoch=1\na end 0 k retry epoch=1\n"
        "a dead 0 k attempts=1\n"
        "broker parked 0 k\nbroker parked 1 k\nbroker redriven 0 k 1\nbroker recovered 2\nbroker redriven 1 k 1\n"
        "a turn 1 k epoch=1\na end 1 k ok epoch=1"
    ),
    "messages join a lane while it is redriven": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\na commit 2\nbroker redriven 0 k 1\na turn 0 k\n"
        "a end 0 k ok\nbroker parked 2 k\na parked 2 k\na commit 3\na turn 1 k\na end 1 k ok\n"
        "broker redriven 2 k 2\na turn 2 k\na end 2 k ok"
    ),
    "next owner runs everything again that was fetched at once and not reported": (
        "a turn 0 k epoch=1\na end 0 k retry epoch=1\na parked 0 k\na parked 1 k\na parked 2 k\na commit 3 epoch=1\n"
        "broker redriven 0 k 2\na turn 0 k epoch=1\na end 0 k ok epoch=1\na turn 1 k epoch=1\na end 1 k ok epoch=1\n"
        "b turn 0 k epoch=2\nb end 0 k ok epoch=2\nb turn 1 k epoch=2\nb end 1 k ok epoch=2\nb turn 2 k epoch=2"
    ),
    "message discarded while it runs, and its broker is restarted": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\na commit 2\nbroker redriven 0 k 1\na turn 0 k\n"
        "broker discarded 0 k\nbroker parked 1 k\nbroker redriven 1 k 1\na effect 0 k\na end 0 k ok\na turn 1 k\n"
        "a effect 1 k\na end 1 k ok"
    ),
    "message discarded while it runs, and its owner gets its lease back after a restart": (
        "a turn 0 k epoch=1\na end 0 k retry epoch=1\na parked 0 k\na parked 1 k\na commit 2 epoch=1\n"
        "broker redriven 0 k 1\na redriven 0 k 1\na turn 0 k epoch=1\nbroker discarded 0 k\n"
        "a end 0 k abandoned epoch=1\nbroker2 parked 1 k\nbroker2 redriven 1 k 1\n"
        "broker2 recovered 2 clean=0 alive=95\na turn 0 k epoch=1\na end 0 k retry epoch=1\n"
        "broker2 redriven 1 k 1\na turn 1 k epoch=1\na end 1 k ok epoch=1"
    ),
    "message discarded on its way fails once more, and the lane continues": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\na commit 2\nbroker redriven 0 k 1\n"
        "broker discarded 0 k\na turn 0 k\na end 0 k retry\nbroker redriven 1 k 1\na turn 1 k\na end 1 k ok"
    ),
    "broker comes back with redriven messages whose removal it did not hear of": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\nbroker redriven 0 k 1\na turn 0 k\na end 0 k ok\n"
        "a turn 1 k\na end 1 k ok\na commit 2\na commit 3\nbroker parked 0 k\nbroker parked 1 k\n"
        "broker redriven 0 k 1\na turn 3 k\na end 3 k ok"
    ),
    "a former owner reports that a message was parked when the next owner has redriven and done it": (
        "a granted a 1\na turn 0 k epoch=1\na end 0 k retry epoch=1\nbroker parked 0 k\na parked 0 k\n"
        "broker parked 1 k\nb granted b 2\nbroker redriven 0 k 1\nb turn 0 k epoch=2\nb end 0 k ok epoch=2\n"
        "b turn 1 k epoch=2\nb end 1 k ok epoch=2\nb turn 2 k epoch=2\nb end 2 k retry epoch=2\na parked 1 k\n"
        "b turn 2 k epoch=2\nb end 2 k ok epoch=2\nb commit 3 epoch=2"
    ),
    "a crash undoes a reset, and what it had skipped runs after what ran behind it": (
        "a granted a 1\na turn 0 k epoch=1\na end 0 k ok epoch=1\nbroker commit 1 epoch=1\na reset 3 epoch=1\n"
        "a turn 3 k epoch=1\na end 3 k ok epoch=1\nbroker recovered 1 clean=0 alive=35\nb granted b 2\n"
        "b turn 1 k epoch=2\nb end 1 k ok epoch=2\nb turn 2 k epoch=2\nb end 2 k ok epoch=2\nb turn 3 k epoch=2\n"
        "b end 3 k ok epoch=2\nb commit 4 epoch=2"
    ),
    "a handler is running during three resets, the last of which skips its message, and then has its effect": (
        "a granted a 1\na turn 2 k epoch=1\nb granted b 2\nb reset 5 epoch=2\nb reset 1 epoch=2\nb reset 5 epoch=2\n"
        "broker commit 5 epoch=2\na effect 2 k epoch=1\na end 2 k abandoned epoch=1"
    ),
    "a message of a deleted topic becomes a dead letter late": (
        "p send m0 k\np acked m0 k 0\na granted a 1\na turn 0 k id=m0 epoch=1\na end 0 k retry epoch=1\n"
        "broker deleted\na turn 0 k id=m0 attempt=2 epoch=1\na end 0 k retry epoch=1\na dead 0 k id=m0 attempts=2\n"
        "p send n0 k\np acked n0 k 0\nb granted b 2\nb turn 0 k id=n0 epoch=2\nb end 0 k ok epoch=2\nb commit 1 epoch=2"
    ),
    "redriven, failed again, parked again, redriven": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na commit 1\nbroker redriven 0 k\na turn 0 k\na end 0 k retry\n"
        "a parked 0 k\nbroker redriven 0 k\na turn 0 k\na end 0 k ok\na turn 1 k"
    ),
    "discarded, the lane continues": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\na commit 2\nbroker discarded 0 k\n"
        "broker discarded 1 k\na turn 2 k\na end 2 k ok\na commit 3"
    ),
    "discarded while its member waits to retry it": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na commit 1\nbroker redriven 0 k\na redriven 0 k\na turn 0 k\n"
        "a end 0 k retry\nbroker discarded 0 k\na turn 0 k\na end 0 k ok\na turn 1 k"
    ),
    "a member reports the parking after the discard": (
        "a turn 0 k\na end 0 k retry\nbroker parked 0 k\nbroker discarded 0 k\na parked 0 k\na commit 1\n"
        "a turn 1 k\na end 1 k ok\na commit 2"
    ),
    "discarded, delivered again because a crash lost the commit, parked again and redriven": (
        "a turn 0 k epoch=1\na end 0 k retry epoch=1\nbroker parked 0 k\na parked 0 k\na commit 1 epoch=1\n"
        "broker discarded 0 k\nbroker2 recovered 0 clean=0 alive=55\nb turn 0 k epoch=2\nb end 0 k retry epoch=2\n"
        "broker2 parked 0 k\nb parked 0 k\nb commit 1 epoch=2\nbroker2 redriven 0 k\nb turn 0 k epoch=2\n"
        "b end 0 k ok epoch=2"
    ),
    "first discarded, the rest redriven": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\na commit 2\nbroker discarded 0 k\n"
        "broker redriven 1 k\na turn 1 k\na end 1 k ok\na turn 2 k"
    ),
    "redriven and dead-lettered, the lane continues": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\na commit 2\nbroker redriven 0 k\na turn 0 k\n"
        "a end 0 k retry\na dead 0 k\na turn 1 k\na end 1 k ok\na turn 2 k"
    ),
    "redriven, committed past while it runs, and dead-lettered": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\nbroker redriven 0 k 1\na turn 0 k\na commit 2\n"
        "a end 0 k retry\na dead 0 k\na turn 1 k\na end 1 k ok\na turn 2 k"
    ),
    "a handler that a reset skips cannot be stopped and has its effect": (
        "a granted a 1\na turn 0 k epoch=1\nb granted b 2\nb reset 5 epoch=2\na effect 0 k epoch=1\n"
        "a end 0 k late epoch=1\nb turn 5 k epoch=2\nb effect 5 k epoch=2\nb end 5 k ok epoch=2\nb commit 6 epoch=2"
    ),
    "a reset while a redriven message runs, whose end the broker does not hear of": (
        "a granted a 1\na turn 0 k epoch=1\na end 0 k retry epoch=1\na parked 0 k\na parked 1 k\na commit 2 epoch=1\n"
        "broker redriven 0 k 1\na turn 0 k epoch=1\na end 0 k ok epoch=1\na reset 5 epoch=1\nbroker commit 5 epoch=1\n"
        "broker redriven 0 k 1\na turn 0 k epoch=1\na end 0 k ok epoch=1\na turn 1 k epoch=1\na end 1 k ok epoch=1"
    ),
    "a reset back into a lane that is being redriven leaves it as it is": (
        "p send n0 k\np acked n0 k 0\np send n1 k\np acked n1 k 1\np send n2 k\np acked n2 k 2\n"
        "a granted a 1\na turn 0 k epoch=1\na end 0 k retry epoch=1\na parked 0 k\na parked 1 k\na parked 2 k\n"
        "broker redriven 0 k 2\na turn 0 k epoch=1\na end 0 k ok epoch=1\nbroker redriven 1 k 2\n"
        "a turn 1 k epoch=1\na end 1 k ok epoch=1\nbroker redriven 2 k 2\na reset 0 epoch=1\nbroker commit 0 epoch=1\n"
        "broker redriven 2 k 2\na turn 2 k epoch=1\na end 2 k ok epoch=1\nbroker commit 3 epoch=1"
    ),
    "two resets skip the same running handler": (
        "a granted a 1\na turn 0 k epoch=1\nb granted b 2\nb reset 5 epoch=2\nb reset 7 epoch=2\n"
        "a effect 0 k epoch=1\na end 0 k late epoch=1\nb turn 7 k epoch=2\nb effect 7 k epoch=2\nb end 7 k ok epoch=2"
    ),
    "reset leaves parked lanes parked": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na turn 1 j\na end 1 j ok\na commit 2\nx reset 0\n"
        "a turn 1 j\na end 1 j ok\na commit 2\nbroker redriven 0 k\na turn 0 k\na end 0 k ok"
    ),
    "retry until it works": "a turn 0 k\na end 0 k retry\na turn 0 k\na end 0 k ok\na turn 1 k",
    "dead letter, then the next": ("a turn 0 k\na end 0 k retry\na dead 0 k\na turn 1 k\na end 1 k ok\na commit 2"),
    "dead letter again after a crash": (
        "a turn 0 k\na end 0 k retry\na dead 0 k\nb turn 0 k\nb end 0 k retry\nb dead 0 k\nb turn 1 k"
    ),
    "skipped by an operator": "a turn 0 k\na end 0 k retry\nx skip 0 k\na turn 1 k\na end 1 k ok\na commit 2",
    "filtered by tag": ("p send m0 k\np acked m0 k 0\na reset 0\na skip 0 k\na turn 1 j\na end 1 j ok\na commit 2"),
    "third owner starts where everything before is finished": (
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\na turn 2 k\nb turn 0 k\nb end 0 k ok\nc turn 2 k"
    ),
    "same process comes back with a new epoch": ("a turn 0 k epoch=1\na end 0 k ok\na turn 0 k epoch=2\na end 0 k ok"),
    "group that starts at the end of the queue": (
        "p send m0 k\np acked m0 k 0\np send m1 k\np acked m1 k 1\na turn 1 k id=m1\na end 1 k ok\na commit 2"
    ),
    "group that starts at the end and has not committed": (
        "p send m0 k\np acked m0 k 0\np send m1 k\np acked m1 k 1\na turn 1 k id=m1\na end 1 k ok"
    ),
    "dead letter without a key, again after a crash": (
        "a turn 0 key=\na end 0 key= outcome=retry\na dead 0 key=\n"
        "b turn 0 key=\nb end 0 key= outcome=retry\nb dead 0 key=\nb commit 1"
    ),
    "commit that names no epoch": "a granted a 1\na turn 0 k\na end 0 k ok\na commit 1",
    "renewed in time": (
        "broker granted a 1 until=50\nbroker renewed a 1 until=90\na renewed a 1 until=80\na turn 0 k epoch=1"
    ),
    "same member gets a new epoch early": (
        "broker granted a 1 until=100\nbroker granted a 2 until=200\na turn 0 k epoch=2"
    ),
    "leases of a broker without epochs": (
        "a granted a 0\na renewed a 0\na released a 0\nb granted b 0\nb turn 0 k\nb renewed b 0"
    ),
    "end of an unknown turn during a take-over": (
        "a turn 0 k\nb turn 0 k\nc end 9 k ok\na end 0 k abandoned\nb end 0 k ok"
    ),
    "keys of a queue run side by side": (
        "a turn 3 k\na turn 1 j\na end 1 j ok\na turn 2 j\na end 3 k ok\na end 2 j ok\na commit 4"
    ),
    "several messages in one call": (
        "a turn 0 k batch=7\na turn 1 k batch=7\na end 0 k ok\na end 1 k ok\na turn 2 k batch=8"
    ),
    "several messages in one call, all again": (
        "a turn 0 k batch=7\na turn 1 k batch=7\na end 0 k retry\na end 1 k retry\n"
        "a turn 0 k batch=8\na turn 1 k batch=8"
    ),
    "reset to an earlier offset": (
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\na commit 2\nx reset 0\na turn 0 k\na end 0 k ok"
    ),
    "reset while the answer to a commit is on its way": (
        "a turn 0 k\na end 0 k ok\nbroker commit 1\na reset 0\na commit 1 asked=2\na turn 0 k\na end 0 k ok"
    ),
    "reset past what was not read": ("a turn 0 k\na end 0 k ok\nx reset 9\na turn 9 k\na end 9 k ok\na commit 10"),
    "delivered before the acknowledgement came": (
        "p send m0 k\na turn 0 k id=m0\na end 0 k ok\na commit 1\np acked m0 k 0"
    ),
    "unknown send that was stored": "p send m0 k\np unknown m0 k\na turn 0 k id=m0\na end 0 k ok",
    "unknown send that was not stored": ("p send m0 k\np unknown m0 k\np send m1 k\np acked m1 k 0\na turn 0 k id=m1"),
    "pipelined acknowledgements arrive out of order": (
        "p send m0 k\np send m1 k\np acked m1 k 1\np acked m0 k 0\na turn 0 k id=m0"
    ),
    "sent again by the user after a failure": (
        "p send m0 k\np failed m0 k\np send m1 k\np acked m1 k 0\na turn 0 k id=m1"
    ),
    "one failed behind a stored one": ("p send m0 k\np acked m0 k 0\np send m1 k\np failed m1 k\na turn 0 k id=m0"),
    "failure of a message whose send was not recorded": "p failed m9 k\na turn 0 k",
    "send recorded again for every attempt": (
        "p send m0 k\np send m1 k\np send m0 k\np acked m0 k 0\np acked m1 k 1\na turn 0 k id=m0"
    ),
    "sends without a key in any order": (
        "p send m0 key=\np send m1 key=\np acked m1 key= offset=0\np acked m0 key= offset=1\na turn 0 key="
    ),
    "failed send without a key": (
        "p send m0 key=\np send m1 key=\np acked m1 key= offset=0\np failed m0 key=\na turn 0 key="
    ),
    "no producer wrote a history": "a turn 0 k id=m0\na end 0 k ok\na turn 1 k id=m1",
    "log read at the end has it all": (
        "p send m0 k\np acked m0 k 0\np send m1 k\np acked m1 k 1\na turn 0 k id=m0\nx stored m0 k 0\nx stored m1 k 1"
    ),
    "commit line of a paused owner comes late": (
        "a granted a 1\na turn 0 k epoch=1\na end 0 k ok\nb granted b 2\nb turn 1 k epoch=2\nb end 1 k ok\n"
        "b commit 2 epoch=2\na commit 1 epoch=1 asked=35"
    ),
    "a lease ends with its topic, and its owner records nothing": (
        "broker granted a 1 until=900\na granted a 1 until=900\na turn 0 k epoch=1\nbroker expired a 1\nbroker deleted"
    ),
    "a lease is given back by a member that never used it and recorded nothing of it": (
        "broker granted a 1 until=900\nbroker released a 1\nbroker granted b 2 until=900\nb granted b 2 until=900\n"
        "b turn 0 k epoch=2"
    ),
    "a member gives the queue back while a turn of its former lease still runs": (
        "a granted a 1 until=900\na turn 0 k epoch=1\na expired a 1\na granted a 2 until=900\na turn 1 j epoch=2\n"
        "a end 1 j ok epoch=2\na released a 2\na end 0 k abandoned epoch=1\nb granted b 3 until=900"
    ),
    "without the broker's history, the next owner comes when the former one has stopped": (
        "a granted a 1 until=15\na turn 0 k epoch=1\na end 0 k ok epoch=1\nb granted b 2 until=900\nb turn 1 k epoch=2"
    ),
    "grant line of a paused member comes late": "b granted b 2\na granted a 1 asked=5\nb turn 0 k epoch=2",
    "broker and member both report the lease": (
        "broker granted a 1 until=90\na granted a 1 until=60 asked=5\na turn 0 k epoch=1\na end 0 k ok\n"
        "a released a 1\nbroker released a 1\nbroker granted b 2 until=200\nb granted b 2 until=150"
    ),
    "expired lease goes to another": ("broker granted a 1 until=30\nbroker granted b 2 at=50\nb turn 0 k epoch=2"),
    "restart keeps the commit": "a turn 0 k\na end 0 k ok\na commit 1\nbroker recovered 1\na turn 1 k",
    "restart makes everything since the commit run again": (
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\na commit 1\nbroker recovered 1\na turn 1 k"
    ),
    "a crash undoes the newest commit": (
        "a turn 0 k\na end 0 k ok\na commit 1\nbroker recovered 0 clean=0 alive=35\n"
        "b turn 0 k\nb end 0 k ok\nb commit 1\nb turn 1 k"
    ),
    "a crash undoes a group's only commit": (
        "a turn 5 k\na end 5 k ok\na commit 6\nbroker recovered -1 clean=0 alive=35\nb turn 5 k\nb end 5 k ok\n"
        "b commit 6"
    ),
    "a crash undoes some commits, and a lane that was forgotten is known again": (
        "a turn 0 k\na end 0 k ok\na turn 1 j\na end 1 j ok\na commit 1\na commit 2\na turn 2 k\na end 2 k ok\n"
        "a commit 3\nbroker recovered 1 clean=0 alive=95\nb turn 1 j\nb end 1 j ok\nb turn 2 k\nb end 2 k ok\n"
        "b commit 3"
    ),
    "a member reports a commit after a crash undid it": (
        "a turn 0 k\na end 0 k ok\nbroker commit 1\nbroker recovered 0 clean=0 alive=35\na commit 1 asked=25\n"
        "b turn 0 k"
    ),
    "after a crash the member repeats its commit": (
        "a turn 0 k\na end 0 k ok\na commit 1\nbroker recovered 0 clean=0 alive=35\na commit 1\na turn 1 k"
    ),
    "a late acknowledgement of a message that a crash made run again": (
        "p send m0 k\na turn 0 k id=m0\na end 0 k ok\na commit 1\nbroker recovered 0 clean=0 alive=45\na commit 1\n"
        "p acked m0 k 0"
    ),
    "a crash undoes a reset that was not answered": (
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\na commit 2\nbroker reset 0\n"
        "broker recovered 2 clean=0 alive=65\na commit 2\nb turn 2 k"
    ),
    "a crash undoes the commit after an effect, which the sink keeps": (
        "a turn 0 k\na effect 0 k\na end 0 k ok\na commit 1\nbroker recovered 0 clean=0 alive=45\nb turn 0 k\n"
        "b end 0 k ok\nb turn 1 k\nb effect 1 k"
    ),
    "a frozen owner's turn ends beside its successor's and is refused": (
        "a granted a 1 until=15\na turn 0 k epoch=1 at=12\nb granted b 2\nb turn 0 k epoch=2\na end 0 k late epoch=1\n"
        "a refused 1 epoch=1\nb end 0 k ok epoch=2\nb commit 1 epoch=2"
    ),
    "the lease was over when the turn ended, and was given again": (
        "a granted a 1 until=25\na turn 0 k epoch=1\na end 0 k late epoch=1 at=60\na renewed a 1 until=99\n"
        "a commit 1 epoch=1\na turn 1 k epoch=1"
    ),
    "the broker shortened the lease of a member whose connection was lost": (
        "broker granted a 1 until=500\na granted a 1 until=300\na turn 0 k epoch=1\nbroker renewed a 1 until=45\n"
        "broker granted b 2 at=50\nb turn 0 k epoch=2\na end 0 k ok epoch=1\na refused 1 epoch=1"
    ),
    "a reset by a member that has lost the queue has no effect": (
        "a granted a 1\nb granted b 2\nb turn 5 k epoch=2\nb end 5 k ok epoch=2\na reset 5 epoch=1\n"
        "b commit 6 epoch=2\nb turn 6 k epoch=2"
    ),
    "a reset to a parked lane leaves it parked": (
        "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k retry\na parked 0 k\na commit 1\na reset 0\n"
        "a commit 1"
    ),
    "a member without order begins just behind another": (
        "a turn 0 key=\na end 0 key= ok\na commit 1\nb turn 0 key=\nb end 0 key= ok"
    ),
    "members without order commit independently": (
        "a turn 0 key=\na end 0 key= ok\na turn 1 key=\na end 1 key= ok\na commit 2\nbroker reset 1 kept=1\n"
        "b turn 1 key=\na turn 2 key=\na end 2 key= ok\na commit 3"
    ),
    "a crash undoes the step back of a member without order": (
        "p send m0 key=\np acked m0 key= 0\na turn 0 key= id=m0\na end 0 key= ok\na turn 1 key=\na end 1 key= ok\n"
        "broker commit 1\nbroker reset 0 kept=1\nbroker recovered 1 clean=0 alive=85\nbroker reset 0 kept=1\n"
        "a commit 2"
    ),
    "a repeat acknowledged without an offset is seen later": (
        "p send m0 k\np send m1 k\np acked m0 k -1\np acked m1 k 1\na turn 0 k id=m0\na end 0 k ok\na turn 1 k id=m1\n"
        "a end 1 k ok\nx stored m0 k 0\nx stored m1 k 1"
    ),
    "members without order commit independently, without lines of the broker": (
        "a turn 0 key=\na end 0 key= ok\na turn 1 key=\na end 1 key= ok\na commit 2\nb commit 1\na commit 2"
    ),
    "a message that was sent back arrives twice": "a turn 0 key= id=m0\na end 0 key= ok\na turn 1 key= id=m0",
    "a parked message has its effect when it is redriven": (
        "a turn 0 k\na end 0 k retry\na parked 0 k\na commit 1\nbroker redriven 0 k\na turn 0 k epoch=1\na effect 0 k"
    ),
    "retention deleted messages that were not read": (
        "p send m0 k\np acked m0 k 0\nx reset 0\nbroker trimmed 1\na turn 1 j\na end 1 j ok\na commit 2"
    ),
    "a group that begins after retention deleted messages": (
        "p send m0 k\np acked m0 k 0\np send m1 k\np acked m1 k 1\nbroker trimmed 1\nbroker commit 1\na turn 1 k"
    ),
    "retention deleted a message before its acknowledgement arrived": (
        "p send m0 k\nbroker trimmed 1\nbroker commit 1\np acked m0 k 0\na turn 1 k"
    ),
    "retention deleted a message that a member without a lease had begun": (
        "p send m0 k\np acked m0 k 0\na turn 0 key= id=m0\nbroker trimmed 1\nbroker commit 1"
    ),
    "a loss that is noticed after the next crash": (
        "a turn 0 key=\na end 0 key= ok\na commit 1\nbroker crashed alive=100 at=200\n"
        "broker crashed alive=5000 at=5100\n"
        "broker recovered -1 clean=0 alive=5000"
    ),
    "a loss that is noticed after the next clean stop": (
        "a turn 0 k\na end 0 k ok\na commit 1\nbroker crashed alive=100 at=200\n"
        "broker recovered -1 alive=5000 at=5100\nb turn 0 k\nb end 0 k ok\nb commit 1"
    ),
    "end and next start within the slack": ("a turn 0 k at=10\nb turn 0 k at=20\na end 0 k ok at=21\nb end 0 k ok"),
    "two groups, each at its own pace": (
        "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na commit 1\n"
        "z turn 0 k id=m0 group=h\nz end 0 k ok group=h\nz commit 1 group=h"
    ),
    "effect line comes after the commit": ("a turn 0 k\na end 0 k ok\na commit 1\na effect 0 k asked=15\na turn 1 k"),
    "log read at the end after retention": (
        "p send m0 k\np acked m0 k 0\np send m1 k\np acked m1 k 1\na turn 1 k id=m1\nbroker trimmed 1\nx stored m1 k 1"
    ),
    "effects of two sinks": (
        "a turn 0 k\na effect 0 k sink=x\na effect 0 k sink=y\na end 0 k ok\na turn 1 k\na effect 1 k sink=x"
    ),
    "messages without a key in any order": (
        "a turn 1 key=\na turn 0 key=\na end 1 key= outcome=ok\na end 0 key= outcome=ok\na commit 2"
    ),
    "delayed message is stored behind its successor": (
        "p send m0 k delay=1\np acked m0 k -1\np send m1 k\np acked m1 k 0\na turn 0 k id=m1\na end 0 k ok\n"
        "a turn 1 k id=m0\na end 1 k ok\na commit 2"
    ),
    "delayed message is acknowledged with an offset of the delay queue": (
        "p send m0 k delay=1\np acked m0 k 0\np send m1 k\np acked m1 k 0\na turn 0 k id=m1\na end 0 k ok\n"
        "a turn 1 k id=m0\na end 1 k ok\na commit 2\nx stored m1 k 0\nx stored m0 k 1"
    ),
    "delayed message with an unknown outcome is delivered": (
        "p send m0 k delay=1\np unknown m0 k\np send m1 k\np acked m1 k 0\na turn 0 k id=m1\na end 0 k ok\n"
        "a turn 1 k id=m0"
    ),
    "delayed message fails, later messages of its key are stored": (
        "p send m0 k delay=1\np send m1 k\np failed m0 k\np acked m1 k 0\na turn 0 k id=m1"
    ),
    "delayed message that is not due at the end": "p send m0 k delay=1\np acked m0 k -1\na turn 0 j\nx stored n0 j 0",
    "turn after the own lease ended, while no other member had the queue": (
        "a granted a 1 until=30\na turn 0 k epoch=1 at=60\na end 0 k ok epoch=1\na commit 1 epoch=1\n"
        "a renewed a 1 until=200\na turn 1 k epoch=1"
    ),
    "turn after the own lease ended is late, and its commit is accepted": (
        "a granted a 1 until=15\na turn 0 k epoch=1 at=40\na end 0 k late epoch=1\na commit 1 epoch=1\n"
        "a turn 1 k epoch=1"
    ),
    "the line of a turn's end is written after a pause": (
        "a turn 0 k\nb turn 0 k at=50\na end 0 k ok ended=40 at=80\nb end 0 k ok"
    ),
    "the line of an effect is written after a pause": (
        "a turn 0 k epoch=1\nb turn 0 k epoch=2 at=30\nb end 0 k ok epoch=2\nb turn 1 k epoch=2\n"
        "b effect 1 k epoch=2\na effect 0 k epoch=1 asked=20\na end 0 k abandoned epoch=1"
    ),
    "a group without order gets messages that have keys": (
        "p send m0 k\np acked m0 k 0\na turn 0 key= id=m0\na end 0 key= ok\na commit 1"
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_history_raises_no_alarm(judge: Judge, name: str) -> None:
    report = judge(LEGAL[name])
    assert report.verdict is Verdict.PASS, [found.text for found in report.violations]


@pytest.mark.parametrize(
    ("received", "legal"),
    [("123", True), ("2123", False), ("12123", True), ("32123", False), ("1323", False)],
)
def test_first_occurrence_rule_decides_the_five_classic_cases(judge: Judge, received: str, legal: bool) -> None:
    """A check for a subsequence passes all of them; a strict one refuses legal redelivery."""
    sends = "".join(f"p send m{i} k\np acked m{i} k {i}\n" for i in (1, 2, 3))
    turns, owner, high = "x reset 1\n", 0, 0
    for message in map(int, received):
        owner += message <= high
        high = message
        turns += f"c{owner} turn {message} k id=m{message}\nc{owner} end {message} k ok\n"
    assert (judge(sends + turns).verdict is Verdict.PASS) == legal


@pytest.mark.parametrize(
    "script",
    [
        "p send m0 k\np acked m0 k 0\nx effect 0 k group=table\na turn 0 k id=m0\na end 0 k ok\na commit 1",
        "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na commit 1\nbroker granted a 1 queue=1",
        "p send m0 k delay=1\np acked m0 k 0 queue=1\na turn 0 j\na end 0 j ok\na commit 1",
        "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na commit 1\n"
        "z turn 0 k id=m0 group=late\nz end 0 k ok group=late\nz commit 1 group=late",
        "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na commit 1\nz reset 1 group=late",
        "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na commit 1\n"
        "broker trimmed 1\nz commit 1 group=late",
        "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na commit 1\nz filtered 0 paid group=late\n"
        "z commit 1 group=late",
        "p send m0 k\np acked m0 k 0\nbroker trimmed 1\na turn 0 j queue=1\na end 0 j ok queue=1\na commit 1 queue=1",
    ],
    ids=[
        "a table that only has effects",
        "an empty queue",
        "a queue with a delayed message",
        "a group that comes late",
        "a late group that begins at the end",
        "a late group after retention",
        "a late group with a filter",
        "a trimmed queue",
    ],
)
def test_a_drained_run_has_nothing_left(judge: Judge, script: str) -> None:
    report = judge(script, CheckOptions(drained=True))
    assert report.verdict is Verdict.PASS, [found.text for found in report.violations]
    assert all(account.backlog == 0 for account in report.groups.values())


def test_redeliveries_are_counted_by_their_cause(judge: Judge) -> None:
    report = judge(
        "a turn 0 k epoch=1\na end 0 k retry\na turn 0 k epoch=1\na end 0 k ok\n"
        "a turn 0 k epoch=2\na end 0 k ok\n"
        "b turn 0 k epoch=3\nb end 0 k ok\nb turn 7 key=\nb turn 7 key="
    )
    causes = {"retry": 1, "new lease": 1, "change of owner": 1, "without key": 1}
    assert report.groups["g"].redelivered == causes
    assert report.coverage["redelivery"] == 4


def test_commits_undone_by_a_crash_and_late_turns_are_counted(judge: Judge) -> None:
    report = judge(
        "a turn 0 k epoch=1\na end 0 k ok\na commit 1 epoch=1\na turn 1 k epoch=1\na end 1 k ok\na commit 2 epoch=1\n"
        "broker recovered 0 clean=0 alive=65\nb turn 0 k epoch=2\nc turn 0 k epoch=3\nb end 0 k late epoch=2"
    )
    assert report.verdict is Verdict.PASS, report
    assert (report.coverage["forgotten_commits"], report.coverage["late_turns"]) == (2, 1)


def test_the_age_of_commits_that_a_crash_may_undo_is_an_option(judge: Judge) -> None:
    script = "a turn 0 k\na end 0 k ok\na commit 1\nbroker recovered 0 clean=0 alive=330"
    assert judge(script).verdict is Verdict.PASS
    assert judge(script, CheckOptions(forgets_ns=200_000_000)).violations[0].invariant == "D3"


def test_the_account_counts_every_message_once_by_how_it_ended(judge: Judge) -> None:
    report = judge(
        "p send m4 k\np acked m4 k 4\nx reset 0\na turn 0 k\na end 0 k ok\nb turn 0 k\nb end 0 k ok\n"
        "b turn 1 k\nb end 1 k retry\nb dead 1 k\nb skip 2 k\nb skip 0 k\nb turn 3 k"
    )
    account = report.groups["g"]
    assert (account.finished, account.dead_lettered, account.skipped, account.backlog) == (1, 1, 1, 2)


def test_repeats_in_the_log_are_counted_when_allowed(judge: Judge) -> None:
    script = "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na turn 1 k id=m0"
    report = judge(script, CheckOptions(idempotent=False))
    assert report.verdict is Verdict.PASS
    assert report.coverage["log_duplicates"] == 1


def test_messages_of_foreign_producers_are_accepted(judge: Judge) -> None:
    script = "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na turn 1 k id=foreign"
    assert judge(script, CheckOptions(foreign_producers=True)).verdict is Verdict.PASS


def test_a_long_lane_is_redriven_twice_below_the_committed_offset(judge: Judge) -> None:
    """The checker keeps no list of a long lane's offsets below the commit."""
    lane = range(1, 100)
    report = judge(
        "\n".join(
            (
                "a turn 0 i epoch=1\na turn 1 k epoch=1\na end 1 k retry epoch=1",
                *(f"broker parked {n} k\na parked {n} k" for n in lane),
                "broker redriven 1 k 99",
                *(f"a turn {n} k epoch=1\na end {n} k ok epoch=1" for n in range(1, 81)),
                "a end 0 i ok epoch=1\na commit 100 epoch=1",
                "broker redriven 1 k 99",
                *(f"b turn {n} k epoch=2\nb end {n} k ok epoch=2" for n in lane),
            )
        )
    )
    assert report.verdict is Verdict.PASS, report


def test_parked_messages_are_counted_by_how_they_ended(judge: Judge) -> None:
    """One is redriven (and runs twice, because its removal was lost), one discarded, one still parked."""
    report = judge(
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\na parked 2 k\na turn 3 j\na end 3 j ok\na commit 4\n"
        "broker redriven 0 k\na turn 0 k epoch=1\na end 0 k ok epoch=1\nb turn 0 k epoch=2\nb end 0 k ok epoch=2\n"
        "broker discarded 1 k",
        CheckOptions(drained=True),
    )
    assert report.verdict is Verdict.PASS, report
    account = report.groups["g"]
    assert (account.finished, account.skipped, account.parked, account.backlog) == (2, 1, 1, 0)


def test_a_restart_of_a_broker_counts_once_however_many_queues_it_has(judge: Judge) -> None:
    once = "a turn 0 k\na end 0 k ok\nbroker recovered 0 alive=15\nbroker recovered 0 alive=15 queue=1"
    assert judge(once).coverage["restarts"] == 1
    assert judge(f"{once}\nbroker recovered 0 alive=45\nbroker recovered 0 alive=45 queue=1").coverage["restarts"] == 2
