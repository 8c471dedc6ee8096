"""The checker finds every kind of violation: one small history for each way to break a promise."""

from collections.abc import Callable

import pytest

from lanemq.checker.checking import CheckOptions
from lanemq.checker.verdict import INVARIANTS, Report, Verdict

Judge = Callable[..., Report]

SENT = """
p send m0 k
p acked m0 k 0
p send m1 k
p acked m1 k 1
p send m2 k
p acked m2 k 2
"""

DONE = SENT + "".join(f"a turn {n} k id=m{n}\na end {n} k ok\n" for n in range(3)) + "a commit 3\n"
"""The group `g` has finished and committed all of it."""

PLANTED = {
    "a group that comes after the others were done leaves a message out": (
        "S1",
        DONE + "z turn 0 k id=m0 group=late\nz end 0 k ok group=late\nz commit 1 group=late\n"
        "z turn 2 k id=m2 group=late\nz end 2 k ok group=late\nz commit 3 group=late",
    ),
    "a group that comes after the others were done leaves its first message out": (
        "S1",
        DONE + "z turn 1 k id=m1 group=late\nz end 1 k ok group=late\nz turn 2 k id=m2 group=late\n"
        "z end 2 k ok group=late\nz commit 3 group=late",
    ),
    "a group that comes after the others were done stops in between": (
        "L1",
        DONE + "z turn 0 k id=m0 group=late\nz end 0 k ok group=late\nz commit 1 group=late",
    ),
    "a key moves to the queue of the same number at another broker": (
        "B1",
        "p send m0 k\np send m1 k\np acked m0 k 0 broker=a\np acked m1 k 1 broker=b",
    ),
    "a member finds an offset that a broker without a history should not have forgotten": (
        "D3",
        "a turn 0 k\na end 0 k ok\na commit 1\nb recovered 0 clean=0 alive=5000 at=5000",
    ),
    "delivered although it was never sent": (
        "S2",
        SENT + "a turn 0 k id=m0\na end 0 k ok\na turn 3 k id=ghost",
    ),
    "delivered although the send failed": (
        "S2",
        "p send m0 k\np failed m0 k\na turn 0 k id=m0",
    ),
    "a copy that an operator sent is no excuse for another message": (
        "S2",
        SENT + "a turn 3 j id=copied copy=1\na end 3 j ok\na turn 4 j id=ghost",
    ),
    "send failed after the message was delivered": (
        "S2",
        "p send m0 k\na turn 0 k id=m0\np failed m0 k",
    ),
    "retention is no excuse for messages that it did not delete": (
        "S1",
        SENT + "x reset 0\nbroker trimmed 1\na turn 2 j\na end 2 j ok\na commit 3",
    ),
    "a tag filter is no excuse for a message that it lets through": (
        "S1",
        "p send m0 k tag=paid\np acked m0 k 0\np send m1 k tag=paid\np acked m1 k 1\na granted a 1\na filtered 0 paid\n"
        "a turn 0 k id=m0 epoch=1\na end 0 k ok epoch=1\nbroker commit 2 epoch=1",
    ),
    "the owner's tag filter is no excuse for a message that another member had subscribed to": (
        "S1",
        "a granted a 1\na filtered 0 paid\nbroker subscribed paid||sent\np send m0 k tag=paid\np acked m0 k 0\n"
        "p send m1 k tag=sent\np acked m1 k 1\na turn 0 k id=m0 epoch=1\na end 0 k ok epoch=1\nbroker commit 2 epoch=1",
    ),
    "the owner's tag filter is no excuse for a message that a member had subscribed to which was lost later": (
        "S1",
        "a granted a 1\na filtered 0 paid\nbroker subscribed paid||sent\np send m0 k tag=paid\np acked m0 k 0\n"
        "p send m1 k tag=sent\np acked m1 k 1\nbroker subscribed paid lost=b\na turn 0 k id=m0 epoch=1\n"
        "a end 0 k ok epoch=1\nbroker commit 2 epoch=1",
    ),
    "a tag filter is no excuse for a message without a tag while another member reads all": (
        "S1",
        "a filtered 0 paid\nbroker subscribed *\np send m0 k\np acked m0 k 0\na reset 0\n"
        "broker commit 1\na commit 1 asked=55",
    ),
    "the tag filter of a former owner is no excuse": (
        "S1",
        "p send m0 k tag=paid\np acked m0 k 0\np send m1 k tag=sent\np acked m1 k 1\na granted a 1\na filtered 0 paid\n"
        "a turn 0 k id=m0 epoch=1\na end 0 k ok epoch=1\nbroker commit 1 epoch=1\nb granted b 2\n"
        "broker commit 2 epoch=2",
    ),
    "a reset forward is no excuse for what it did not skip": (
        "S1",
        SENT + "a granted a 1\na turn 0 k id=m0 epoch=1\na end 0 k ok epoch=1\na reset 1 epoch=1\n"
        "broker commit 1 epoch=1\na turn 2 k id=m2 epoch=1\na end 2 k ok epoch=1\nbroker commit 3 epoch=1",
    ),
    "the topic's deletion is no excuse for a loss in the next of its name": (
        "S1",
        SENT + "a turn 0 k id=m0\na end 0 k ok\na commit 1\nbroker deleted\np send n0 k\np acked n0 k 0\n"
        "p send n1 k\np acked n1 k 1\na turn 0 k id=n0\na end 0 k ok\na commit 2",
    ),
    "a member that froze and came back commits what its successor had done": (
        "C3",
        SENT + "broker granted a 1\na granted a 1\na turn 0 k id=m0 epoch=1\nbroker granted b 2\nb granted b 2\n"
        "b turn 0 k id=m0 epoch=2\nb end 0 k ok epoch=2\nbroker commit 1 epoch=2\na end 0 k late epoch=1\n"
        "broker commit 1 epoch=1",
    ),
    "a key is discarded, and what was not discarded of it is left out": (
        "B3",
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\na commit 2\nbroker discarded 0 k\na turn 2 k",
    ),
    "retention is no excuse for an owner that commits past what it has begun": (
        "D2",
        SENT + "broker granted a 1\na turn 0 k id=m0 epoch=1\nbroker trimmed 1\na commit 1 epoch=1",
    ),
    "two messages acknowledged at one offset": (
        "S3",
        "p send m0 k\np send m1 j\np acked m0 k 0\np acked m1 j 0",
    ),
    "an offset delivers another message later": (
        "S3",
        "p send m0 k\np send m1 j\na turn 0 k id=m0\na end 0 k retry\na turn 0 k id=m1",
    ),
    "acknowledged at the offset of a message that is already forgotten": (
        "B1",
        "p send m0 k\na turn 0 k id=m0\na end 0 k ok\np send m1 k\na commit 1\np acked m1 k 0",
    ),
    "the acknowledged offset holds another message": (
        "S4",
        "p send m0 k\np send m1 j\np acked m0 k 0\na turn 0 j id=m1",
    ),
    "log read at the end contradicts the acknowledgement": (
        "S4",
        "p send m0 k\np send m1 j\np acked m0 k 0\nx stored m1 j 0",
    ),
    "acknowledged, committed past, never seen": (
        "S1",
        SENT + "a turn 0 k id=m0\na end 0 k ok\na commit 3",
    ),
    "acknowledged late, already committed past unseen": (
        "S1",
        "p send m1 j\na turn 0 k\na end 0 k ok\na turn 2 k\na end 2 k ok\na commit 3\np acked m1 j 1",
    ),
    "an end without a start finishes nothing": (
        "S1",
        SENT + "x reset 0\na turn 0 k id=m0\na end 0 k ok\na end 1 k ok\na commit 2",
    ),
    "acknowledged and not in the log": (
        "S1",
        SENT + "a turn 0 k id=m0\na end 0 k ok\nx stored m0 k 0\nx stored m2 k 2",
    ),
    "only the broker's line shows that a recorded member lost messages": (
        "S1",
        SENT + "broker granted a 1\na granted a 1\na turn 0 k id=m0 epoch=1\na end 0 k ok epoch=1\n"
        "broker commit 1 epoch=1\nbroker commit 3 epoch=1",
    ),
    "a recorded member without order lost a message, and reports its commit after the broker": (
        "S1",
        SENT + "a turn 0 key= id=m0\na end 0 key= ok\nbroker commit 1\na commit 1 asked=85\nbroker commit 2\n"
        "a commit 2 asked=105",
    ),
    "a recorded member without order lost a message that is acknowledged before it reports its commit": (
        "S1",
        SENT + "p send m3 k\nx reset 3\nbroker commit 4\np acked m3 k 3\na commit 4 asked=85",
    ),
    "a recorded member lost a message that was sent after another without a history had the queue": (
        "S1",
        SENT + "broker granted z 1\nbroker commit 3 epoch=1\np send m3 k\np acked m3 k 3\nbroker granted a 2\n"
        "a granted a 2\nbroker commit 4 epoch=2",
    ),
    "only the broker's line shows that a recorded member commits what it has not finished": (
        "D2",
        "broker granted a 1\na granted a 1\na turn 0 k epoch=1\nbroker commit 1 epoch=1",
    ),
    "first message of the group lost, run meant to be whole": (
        "S1",
        SENT + "a turn 1 k id=m1\na end 1 k ok\na turn 2 k id=m2\na end 2 k ok\na commit 3",
    ),
    "stored in another order than sent": (
        "B1",
        "p send m0 k\np acked m0 k 5\np send m1 k\np acked m1 k 4",
    ),
    "pipelined sends stored in another order": (
        "B1",
        "p send m0 k\np send m1 k\np acked m1 k 0\np acked m0 k 1",
    ),
    "unknown send shows up behind its successor": (
        "B1",
        "p send m0 k\np unknown m0 k\np send m1 k\np acked m1 k 0\na turn 0 k id=m1\na end 0 k ok\na turn 1 k id=m0",
    ),
    "key changes its queue": (
        "B1",
        "p send m0 k\np acked m0 k 0\np send m1 k\np acked m1 k 7 queue=1",
    ),
    "stored below what every group committed past": (
        "B1",
        "p send m0 k\np acked m0 k 5\na turn 5 k id=m0\na end 5 k ok\na commit 6\np send m1 k\np acked m1 k 3",
    ),
    "message twice in the log": (
        "B6",
        "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na turn 1 k id=m0",
    ),
    "later message stored while an earlier one failed": (
        "B7",
        "p send m0 k\np send m1 k\np acked m1 k 0\np failed m0 k",
    ),
    "message under way stored after an earlier one failed": (
        "B7",
        "p send m0 k\np send m1 k\np failed m0 k\np acked m1 k 0",
    ),
    "2 before 1": ("B2", "a turn 1 k\na end 1 k ok\na turn 0 k"),
    "1 never runs, 2 does": (
        "B2",
        SENT + "a reset 0\na turn 0 k id=m0\na end 0 k ok\na turn 2 k id=m2\na end 2 k ok",
    ),
    "next one starts after a failed turn": ("B3", "a turn 0 k\na end 0 k retry\na turn 1 k"),
    "next one starts before the dead letter is stored": (
        "B3",
        "a turn 0 k\na end 0 k retry\na turn 1 k\na dead 0 k",
    ),
    "new owner leaves out the unfinished message": (
        "B4",
        "a turn 0 k epoch=1\nb granted b 2\nb turn 1 k epoch=2",
    ),
    "abandoned message is left out by the next owner": (
        "B4",
        "a turn 0 k epoch=1\na end 0 k abandoned\nb granted b 2\nb turn 1 k epoch=2",
    ),
    "replay skips a message": (
        "B4",
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\na turn 2 k\na end 2 k ok\n"
        "b turn 0 k\nb end 0 k ok\nb turn 2 k",
    ),
    "replay skips to a new message": (
        "B4",
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\nb turn 0 k\nb end 0 k ok\nb turn 2 k",
    ),
    "two turns of a key at once in one process": ("B5", "a turn 0 k\na turn 1 k"),
    "same message twice at once in one process": ("B5", "a turn 0 k\na turn 0 k"),
    "two turns of a key at once in two processes": (
        "B5",
        "a turn 0 k\nb turn 0 k\na end 0 k ok\nb end 0 k ok",
    ),
    "next call starts before the last message of a batch ended": (
        "B5",
        "a turn 0 k batch=7\na turn 1 k batch=7\na end 0 k ok\na turn 2 k batch=8",
    ),
    "two batches at once in one process": ("B5", "a turn 0 k batch=1\na turn 1 k batch=2"),
    "same batch number in two processes": (
        "B5",
        "a turn 0 k batch=1\nb turn 0 k batch=1\na end 0 k ok",
    ),
    "old owner's release frees nothing": (
        "C1",
        "broker granted a 1 until=20\nbroker granted b 2 at=30 until=200\na released a 1\nbroker granted c 3",
    ),
    "granted while the other one's lease runs": (
        "C1",
        "broker granted a 1 until=100\nbroker granted b 2 at=50\nb turn 0 k epoch=2",
    ),
    "granted although the lease had been renewed": (
        "C1",
        "broker granted a 1 until=20\nbroker renewed a 1 at=15 until=90\nbroker granted b 2 at=50",
    ),
    "granted early after a renewal that names no end": (
        "C1",
        "broker granted a 1 until=100\nbroker renewed a 1\nbroker granted b 2 at=50",
    ),
    "renewed although another one owns it": ("C1", "a granted a 1\nb granted b 2\na renewed a 1"),
    "epoch given to two members": ("C2", "a granted a 1\nb granted b 1"),
    "epoch goes back": ("C2", "a granted a 5\nb granted b 4"),
    "epoch starts again after a broker restart": (
        "C2",
        "broker granted a 5 until=20\nbroker recovered 0 at=30\nbroker granted b 1 until=90",
    ),
    "commit of an old epoch accepted": (
        "C3",
        "a granted a 1\na turn 0 k epoch=1\na end 0 k ok\nb granted b 2\na commit 1 epoch=1",
    ),
    "commit of an old epoch accepted, leases not recorded": (
        "C3",
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\nb commit 1 epoch=2\na commit 2 epoch=1",
    ),
    "commit with an epoch that was never granted": (
        "C3",
        "a granted a 1\na turn 0 k\na end 0 k ok\na commit 1 epoch=9",
    ),
    "turn after the queue went to another": (
        "C5",
        "a granted a 1\nb granted b 2\na turn 0 k epoch=1\na end 0 k ok",
    ),
    "turn after the own lease ended and the queue went to another": (
        "C5",
        "a granted a 1 until=30\nb granted b 2 at=50\na turn 0 k epoch=1 at=60\na end 0 k ok",
    ),
    "turn of an old epoch, leases not recorded": (
        "C5",
        "b turn 0 k epoch=2\nb end 0 k ok\na turn 0 k epoch=1\na end 0 k ok",
    ),
    "commit goes back": (
        "D1",
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\na commit 2\na commit 1",
    ),
    "commit passes a running message": ("D2", "a turn 0 k\na commit 1"),
    "commit passes a failed message": ("D2", "a turn 0 k\na end 0 k retry\na commit 1"),
    "commit asked for before the message ended": ("D2", "a turn 0 k\na end 0 k ok\na commit 1 asked=15"),
    "commit lost by a restart": ("D3", "a turn 0 k\na end 0 k ok\na commit 1\nbroker recovered 0"),
    "a crash undoes a commit of ten seconds before": (
        "D3",
        "a turn 0 k\na end 0 k ok\na commit 1\nbroker recovered 0 clean=0 alive=10030 at=10100",
    ),
    "a crash undoes an old commit together with a new one": (
        "D3",
        "a turn 0 k\na end 0 k ok\na commit 1\na turn 1 k at=2000\na end 1 k ok\na commit 2\n"
        "broker recovered 0 clean=0 alive=2030",
    ),
    "a crash undoes the only commit, which is old": (
        "D3",
        "a turn 0 k\na end 0 k ok\na commit 1\nbroker recovered -1 clean=0 alive=900 at=950",
    ),
    "a crash does not excuse turns below the offset that was found": (
        "D4",
        "a turn 0 k\na end 0 k ok\na commit 1\na turn 1 k\na end 1 k ok\na commit 2\n"
        "broker recovered 1 clean=0 alive=60\nb turn 0 k",
    ),
    "a crash that undid nothing is no excuse": (
        "D4",
        "a turn 0 k\na end 0 k ok\na commit 1\nbroker recovered 1 clean=0 alive=35\nb turn 0 k",
    ),
    "what a crash undid may run again, but without skipping": (
        "B4",
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\na turn 2 k\na end 2 k ok\na commit 3\n"
        "broker recovered 0 clean=0 alive=75\nb turn 0 k\nb end 0 k ok\nb turn 2 k",
    ),
    "what a crash undid may run again, but one at a time": (
        "B5",
        "a turn 0 k\na end 0 k ok\na commit 1\nbroker recovered 0 clean=0 alive=35\n"
        "b turn 0 k\nc turn 0 k\nb end 0 k ok",
    ),
    "a commit goes back below what was found after a crash": (
        "D1",
        "a turn 0 k\na end 0 k ok\na commit 1\na turn 1 k\na end 1 k ok\na commit 2\n"
        "broker recovered 1 clean=0 alive=60\na commit 0",
    ),
    "a repeat acknowledged without an offset is not in the log": (
        "S1",
        "p send m0 k\np send m1 k\np acked m0 k -1\np acked m1 k 0\na turn 0 k id=m1\na end 0 k ok\nx stored m1 k 0",
    ),
    "a member without a lease commits what is unfinished": (
        "D2",
        "a turn 0 key=\na end 0 key= ok\na commit 1\nbroker reset 0 kept=1\na turn 1 key=\na commit 2",
    ),
    "a turn that outlived its lease was accepted": (
        "B5",
        "a turn 0 k epoch=1\nb turn 0 k epoch=2\na end 0 k late epoch=1\na commit 1 epoch=1",
    ),
    "a turn that ran when its lease was shortened was accepted": (
        "B5",
        "broker granted a 1 until=500\na turn 0 k epoch=1\nbroker renewed a 1 until=35\nb turn 0 k epoch=2 at=50\n"
        "a end 0 k ok epoch=1\na commit 1 epoch=1",
    ),
    "a turn that began after its lease was shortened was accepted": (
        "C5",
        "broker granted a 1 until=500\na turn 0 k epoch=1\na end 0 k ok epoch=1\nbroker renewed a 1 until=35\n"
        "b turn 1 j epoch=2 at=50\na turn 1 j epoch=1\na end 1 j ok epoch=1\na commit 2 epoch=1",
    ),
    "a turn began after the next owner was granted, and its member did not know of the shortened lease": (
        "C5",
        "broker granted a 1 until=500\na granted a 1 until=300\nbroker renewed a 1 until=35\nbroker granted b 2 at=50\n"
        "a turn 0 k epoch=1\na end 0 k ok epoch=1\na refused 1 epoch=1\nb turn 0 k epoch=2",
    ),
    "a lease that was not shortened is no excuse": (
        "B5",
        "broker granted a 1 until=45\na turn 0 k epoch=1\nbroker granted b 2 at=50\nb turn 0 k epoch=2\n"
        "a end 0 k ok epoch=1",
    ),
    "a turn that began under a lease that had gone to another was accepted": (
        "C5",
        "b turn 1 j epoch=2\na turn 0 k epoch=1\na end 0 k late epoch=1\na commit 1 epoch=1",
    ),
    "a turn that outlived its lease is not finished for the next owner": (
        "B4",
        "a granted a 1\na turn 0 k epoch=1\nb granted b 2\na end 0 k late epoch=1\nb turn 1 k epoch=2",
    ),
    "delivered again below the commit": ("D4", "a turn 0 k\na end 0 k ok\na commit 1\nb turn 0 k"),
    "dead-lettered without an attempt": ("E1", "a turn 0 k\na end 0 k ok\na dead 1 k"),
    "dead-lettered after success": ("E1", "a turn 0 k\na end 0 k ok\na dead 0 k"),
    "dead-lettered twice": ("E1", "a turn 0 k\na end 0 k retry\na dead 0 k\na dead 0 k"),
    "dead-lettered with another number of attempts than it had": (
        "E1",
        "a turn 0 k attempt=1\na end 0 k retry\na turn 0 k attempt=2\na end 0 k retry\na dead 0 k attempts=3",
    ),
    "deleting another topic is no excuse": (
        "D4",
        "a turn 0 k\na end 0 k ok\na commit 1\nbroker deleted topic=bills\nb turn 0 k",
    ),
    "a new topic's messages need a sender, whatever the old one held": (
        "S2",
        SENT + "broker deleted\np send n0 k\np acked n0 k 0\na turn 0 k id=n0\na end 0 k ok\na turn 1 k id=ghost",
    ),
    "dead-lettered after it was committed past": ("E1", "a turn 0 k\na end 0 k ok\na commit 1\na dead 0 k"),
    "parked message runs although it was not redriven": (
        "E4",
        "a turn 0 k\na end 0 k retry\na parked 0 k\na commit 1\na turn 0 k",
    ),
    "lane that failed again runs although it was not redriven again": (
        "E4",
        "a turn 0 k\na end 0 k retry\na parked 0 k\nbroker redriven 0 k\na turn 0 k\na end 0 k retry\n"
        "a parked 0 k\na turn 0 k",
    ),
    "successor runs while its lane is parked": (
        "B3",
        "a turn 0 k\na end 0 k retry\na parked 0 k\na commit 1\na turn 1 k",
    ),
    "new owner runs a successor of a lane that another parked": (
        "B4",
        "a turn 0 k\na end 0 k retry\na parked 0 k\na commit 1\nb turn 1 k",
    ),
    "redriven message runs again after its removal was reported": (
        "D4",
        "a turn 0 k epoch=1\na end 0 k retry epoch=1\na parked 0 k\na parked 1 k\na commit 2 epoch=1\n"
        "broker redriven 0 k 0\na turn 0 k epoch=1\na end 0 k ok epoch=1\nbroker redriven 1 k 1\nb turn 0 k epoch=2",
    ),
    "discarded message runs although its owner has asked the restarted broker for the next": (
        "D4",
        "a turn 0 k epoch=1\na end 0 k retry epoch=1\na parked 0 k\na parked 1 k\na commit 2 epoch=1\n"
        "broker redriven 0 k 1\na turn 0 k epoch=1\nbroker discarded 0 k\na end 0 k abandoned epoch=1\n"
        "broker2 redriven 1 k 1\nbroker2 redriven 1 k 1\na turn 0 k epoch=1",
    ),
    "message that succeeded before it was discarded runs again after a restart": (
        "D4",
        "a turn 0 k epoch=1\na end 0 k retry epoch=1\na parked 0 k\na parked 1 k\na commit 2 epoch=1\n"
        "broker redriven 0 k 1\na turn 0 k epoch=1\na end 0 k ok epoch=1\nbroker discarded 0 k\n"
        "broker2 redriven 1 k 1\nb turn 0 k epoch=2",
    ),
    "message that succeeded after it was discarded runs again after a restart": (
        "D4",
        "a turn 0 k epoch=1\na end 0 k retry epoch=1\na parked 0 k\na parked 1 k\na commit 2 epoch=1\n"
        "broker redriven 0 k 1\na turn 0 k epoch=1\nbroker discarded 0 k\na end 0 k ok epoch=1\n"
        "broker2 redriven 1 k 1\nb turn 0 k epoch=2",
    ),
    "redriven message runs again although the restarted broker has its removal": (
        "D4",
        "a turn 0 k epoch=1\na end 0 k retry epoch=1\na parked 0 k\na parked 1 k\na commit 2 epoch=1\n"
        "broker redriven 0 k 1\na turn 0 k epoch=1\na end 0 k ok epoch=1\nbroker2 redriven 1 k 1\n"
        "b turn 0 k epoch=2",
    ),
    "discarded message runs although it was not on its way": (
        "D4",
        "a turn 0 k epoch=1\na end 0 k retry epoch=1\na parked 0 k\na parked 1 k\na commit 2 epoch=1\n"
        "broker redriven 0 k 0\nbroker discarded 0 k\nbroker discarded 1 k\na turn 1 k epoch=1",
    ),
    "message that failed when it was redriven again is overtaken": (
        "B4",
        "a turn 0 k epoch=1\na end 0 k retry epoch=1\na parked 0 k\na commit 1 epoch=1\nbroker redriven 0 k 0\n"
        "a turn 0 k epoch=1\na end 0 k ok epoch=1\nb turn 0 k epoch=2\nb end 0 k retry epoch=2\nc turn 1 k epoch=3",
    ),
    "newer message runs before the redriven ones": (
        "B3",
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\na commit 2\nbroker redriven 0 k\n"
        "a turn 0 k\na end 0 k ok\na turn 2 k",
    ),
    "redrive in the wrong order": (
        "B3",
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\na commit 2\nbroker redriven 0 k\na turn 1 k",
    ),
    "parked message that was finished comes back later": (
        "D4",
        "a turn 0 k\na end 0 k retry\na parked 0 k\na commit 1\nbroker redriven 0 k\na turn 0 k\na end 0 k ok\n"
        "a turn 1 k\na end 1 k ok\na commit 2\na turn 0 k",
    ),
    "discarded message runs": (
        "D4",
        "a turn 0 k\na end 0 k retry\na parked 0 k\na commit 1\nbroker discarded 0 k\na turn 0 k",
    ),
    "commit passes what was parked only afterwards": (
        "D2",
        "a turn 0 k\na end 0 k retry\na commit 1\na parked 0 k",
    ),
    "delivered again for no reason": ("E3", "a turn 0 k\na end 0 k ok\na turn 0 k"),
    "effect twice": ("P1", "a turn 0 k\na effect 0 k\na effect 0 k"),
    "effects in the wrong order": ("P1", "a turn 0 k\na effect 1 k\na effect 0 k"),
    "effect after the commit": ("P1", "a turn 0 k\na effect 0 k\na end 0 k ok\na commit 1\na effect 0 k"),
    "effect of a stale owner": (
        "P2",
        "b turn 0 k epoch=2\nb effect 0 k epoch=2\nb end 0 k ok\na effect 1 k epoch=1",
    ),
    "delivered with another key": ("S5", "p send m0 k\np acked m0 k 0\na turn 0 j id=m0"),
    "delivered with another key before it was acknowledged": ("S5", "p send m0 k\na turn 0 j id=m0"),
    "delivered with a key although it was sent without one": (
        "S5",
        "p send m0 key=\np acked m0 key= offset=0\na turn 0 k id=m0",
    ),
    "stored in the log with another key": ("S5", "p send m0 k\np acked m0 k 0\nx stored m0 j 0"),
    "delayed message delivered with another key": ("S5", "p send m0 k delay=1\np acked m0 k -1\na turn 0 j id=m0"),
    "two groups get a message with different keys": (
        "S5",
        "a turn 0 k id=m0\na end 0 k ok\nz turn 0 j id=m0 group=h",
    ),
    "delayed message delivered although its send failed": (
        "S2",
        "p send m0 k delay=1\np failed m0 k\na turn 0 k id=m0",
    ),
    "delayed message twice in the log": (
        "B6",
        "p send m0 k delay=1\np acked m0 k -1\na turn 0 k id=m0\na end 0 k ok\na turn 1 k id=m0",
    ),
    "key delivered from two queues": (
        "B1",
        "p send m0 k\np send m1 k\na turn 0 k id=m0\na end 0 k ok\na turn 0 k id=m1 queue=1",
    ),
    "second message of three failed, the third is stored": (
        "B7",
        "p send m0 k\np send m1 k\np send m2 k\np acked m0 k 0\np failed m1 k\np acked m2 k 1",
    ),
    "second group commits past a message that it never saw": (
        "S1",
        SENT + "z reset 0 group=h\nz turn 0 k id=m0 group=h\nz end 0 k ok group=h\nz commit 2 group=h",
    ),
    "order broken in another queue": (
        "B3",
        "a turn 0 k queue=1\na end 0 k retry queue=1\na turn 0 k\na end 0 k ok\na turn 1 k queue=1",
    ),
    "next owner starts behind the unfinished message of a batch": (
        "B4",
        "a turn 0 k batch=7\na turn 1 k batch=7\na end 0 k ok\na end 1 k retry\nb turn 2 k",
    ),
    "a line written late shows a handler that returned after the next owner started": (
        "B5",
        "a turn 0 k\nb turn 0 k\na end 0 k ok ended=35 at=80",
    ),
    "a renewal undoes a shortened lease": (
        "C1",
        "broker granted a 1 until=100\nbroker renewed a 1 until=40\nbroker renewed a 1 until=120\n"
        "broker granted b 2 at=60",
    ),
    "epoch goes back after a release": (
        "C2",
        "broker granted a 3 until=90\nbroker released a 3\nbroker granted b 2",
    ),
    "a member releases the queue while its handler runs, or the end of that turn is missing": (
        "C1",
        "a granted a 1\na turn 0 k epoch=1\na end 0 k retry epoch=1\na turn 0 k epoch=1 attempt=1\na released a 1",
    ),
    "the broker ends a lease by request, and its member recorded no release": (
        "C1",
        "broker granted a 1 until=900\na granted a 1 until=900\nbroker released a 1",
    ),
    "the broker gives the queue away without a release of its own": (
        "C1",
        "broker granted a 1 until=900\na granted a 1 until=900\na released a 1\nbroker granted b 2",
    ),
    "without the broker's history, the next owner comes before the former one stops, which released nothing": (
        "C1",
        "a granted a 1 until=15\na renewed a 1 until=900\nb granted b 2",
    ),
    "turn after the queue went to another, though the own lease seemed to run": (
        "C5",
        "broker granted a 1 until=15\na granted a 1 until=900\nb granted b 2\na turn 0 k epoch=1\na end 0 k ok epoch=1",
    ),
    "broker accepts a lower offset": (
        "D1",
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\nbroker commit 2\nbroker commit 1",
    ),
    "a crash loses an old commit, which is noticed after the next crash": (
        "D3",
        "a turn 0 key=\na end 0 key= ok\na commit 1\nbroker crashed alive=900 at=950\n"
        "broker crashed alive=5000 at=5100\n"
        "broker recovered -1 clean=0 alive=5000",
    ),
    "the next crash loses a commit that the last one did not": (
        "D3",
        "a turn 0 key=\na end 0 key= ok\nbroker crashed alive=20 at=30\na commit 1\nbroker crashed alive=5000 at=5100\n"
        "broker recovered -1 clean=0 alive=5000",
    ),
    "a crash loses an old commit, which is noticed after the next clean stop": (
        "D3",
        "a turn 0 k\na end 0 k ok\na commit 1\nbroker crashed alive=900 at=950\nbroker recovered -1 alive=5000 at=5100",
    ),
    "the next clean stop loses a commit that the last crash left": (
        "D3",
        "a turn 0 k\na end 0 k ok\na commit 1\nbroker crashed alive=100 at=200\nbroker recovered 1 clean=0 alive=100\n"
        "broker recovered -1 alive=5000 at=5100",
    ),
    "a clean stop loses a commit that is newer than the last crash": (
        "D3",
        "a turn 0 k\na end 0 k ok\nbroker crashed alive=20 at=30\na commit 1\nbroker recovered -1 alive=5000 at=5100",
    ),
    "a clean stop leaves an older offset, and the last crash is no excuse": (
        "D3",
        "a turn 0 k\na end 0 k ok\na commit 1\na turn 1 k\na end 1 k ok\na commit 2\n"
        "broker crashed alive=100 at=200\nbroker recovered 1 alive=5000 at=5100",
    ),
    "clean stop loses a group's only offset": ("D3", "a turn 0 k\na end 0 k ok\na commit 1\nbroker recovered -1"),
    "second group gets a message again below its commit": (
        "D4",
        "z turn 0 k group=h\nz end 0 k ok group=h\nz commit 1 group=h\na turn 0 k\na end 0 k ok\nz turn 0 k group=h",
    ),
    "dead-lettered after the next owner succeeded": (
        "E1",
        "a turn 0 k\na end 0 k retry\nb turn 0 k\nb end 0 k ok\nb dead 0 k",
    ),
    "delivered again after its retry succeeded": (
        "E3",
        "a turn 0 k\na end 0 k retry\na turn 0 k\na end 0 k ok\na turn 0 k",
    ),
    "message that the broker parked runs": ("E4", "a turn 0 k\na end 0 k retry\nbroker parked 0 k\na turn 0 k"),
    "a table stores an effect again in its next run": (
        "P1",
        "x effect 0 k group=table epoch=1\nx effect 1 k group=table epoch=1\nx effect 1 k group=table epoch=2",
    ),
    "effect twice, before and after a reset that skips the message while it runs": (
        "P1",
        "a turn 0 k\na effect 0 k\nx reset 5\na effect 0 k",
    ),
    "effect of a message that a reset skipped while it ran, after that of a later one": (
        "P1",
        "a turn 0 k\nx reset 5\nb turn 5 k\nb effect 5 k\na effect 0 k",
    ),
    "effect of a message that a reset skipped before it ran": (
        "P1",
        "a turn 0 k\nx reset 5\na effect 1 k",
    ),
    "effect of a message that a reset skipped after it ran": (
        "P1",
        "a turn 0 k\na end 0 k ok\nx reset 5\na effect 0 k",
    ),
    "parked, committed past and dead-lettered without a redrive": (
        "E1",
        "a turn 0 k\na end 0 k retry\na parked 0 k\na commit 1\na dead 0 k",
    ),
    "dead-lettered without an attempt behind a redriven message": (
        "E1",
        "a turn 0 k\na end 0 k retry\na parked 0 k\na parked 1 k\na commit 2\nbroker redriven 0 k 1\na turn 0 k\n"
        "a end 0 k retry\na dead 1 k",
    ),
    "effect of a stale owner for another key of the queue": (
        "P2",
        "b turn 0 k epoch=2\nb effect 0 k epoch=2\nb end 0 k ok\na effect 1 j epoch=1",
    ),
    "effect of a stale owner after a reset": (
        "P2",
        "b effect 5 k epoch=2\nx reset 0\na effect 0 j epoch=1",
    ),
    "group never touched a queue of its topic": (
        "L1",
        "p send m0 k\np acked m0 k 0\np send m1 j\np acked m1 j 0 queue=1\na turn 0 k id=m0\na end 0 k ok\na commit 1",
    ),
    "group never touched a queue that another group finished": (
        "L1",
        "p send m0 k\np acked m0 k 0\np send m1 j\np acked m1 j 0 queue=1\na turn 0 k id=m0\na end 0 k ok\na commit 1\n"
        "z turn 0 k id=m0 group=h\nz end 0 k ok group=h\nz commit 1 group=h\n"
        "z turn 0 j id=m1 group=h queue=1\nz end 0 j ok group=h queue=1\nz commit 1 group=h queue=1",
    ),
    "message left over in a drained run": (
        "L1",
        "p send m0 k\np acked m0 k 0\np send m1 k\np acked m1 k 1\na turn 0 k\na end 0 k ok\na commit 1",
    ),
}

DRAINED = {
    "a group that comes after the others were done leaves its first message out",
    "a group that comes after the others were done stops in between",
    "first message of the group lost, run meant to be whole",
    "group never touched a queue of its topic",
    "group never touched a queue that another group finished",
    "message left over in a drained run",
}
"""Violations only of a run that was meant to end with nothing left over."""


@pytest.mark.parametrize("name", PLANTED)
def test_planted_violation_is_found_and_named(judge: Judge, name: str) -> None:
    invariant, script = PLANTED[name]
    report = judge(script, CheckOptions(drained=name in DRAINED))
    assert report.violations, "nothing found"
    assert report.violations[0].invariant == invariant, report.violations[0].text
    assert report.verdict in (Verdict.VIOLATION, Verdict.UNKNOWN)


@pytest.mark.parametrize("name", sorted(DRAINED))
def test_what_is_left_is_a_violation_only_of_a_drained_run(judge: Judge, name: str) -> None:
    assert judge(PLANTED[name][1]).verdict is Verdict.PASS


def test_messages_of_an_untouched_queue_count_as_left_over(judge: Judge) -> None:
    report = judge(PLANTED["group never touched a queue that another group finished"][1], CheckOptions(drained=True))
    assert (report.groups["g"].backlog, report.groups["h"].backlog) == (1, 0)
    (found,) = report.violations
    assert (found.group, found.topic, found.queue) == ("g", "orders", 1)
    assert "never touched this queue, which holds the offsets 0 to 0" in found.text


def test_every_invariant_has_a_planted_violation() -> None:
    """A rule that no test breaks may have stopped working."""
    assert {invariant for invariant, _ in PLANTED.values()} == set(INVARIANTS)


def test_a_message_that_was_skipped_for_want_of_a_lost_member_is_reported_with_its_tags(judge: Judge) -> None:
    name = "the owner's tag filter is no excuse for a message that a member had subscribed to which was lost later"
    (found,) = judge(PLANTED[name][1], CheckOptions()).violations
    assert "left out its tag 'sent', which the lost member b had subscribed to" in found.text
    assert found.text.endswith("(tags 'paid || sent')")
