"""What the tags of an owner left out is finished when the owner is lost before it could report it.

An owner with more tags would otherwise run it behind newer messages of its key. The broker knows how far the owner has
read (`QueueProgress.filtered`), and its index which messages have other tags.
"""

import contextlib
from collections.abc import Iterator

from lanemq.broker.context import GroupContext
from lanemq.core.brokering.queue_progress import Committed, ResetState
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.model.errors import StorageError
from lanemq.model.queue import MessageQueue


def leave_out(context: GroupContext, group: str, queue: MessageQueue) -> Iterator[None]:
    """Finish what the owner of a queue has left out; some entries of the index in each step."""
    progress = context.progress.at(group, queue)
    read, start = progress.filtered, progress.offset
    if read is None or start is None or progress.reset is not ResetState.NONE:
        return
    progress.filtered = None
    left_out, finished = list[int](), FinishedRanges.decode(progress.finished, start)
    with contextlib.suppress(StorageError):  # an index is being rebuilt: they run again
        for offsets in context.queue_log.left_out(queue, start, read.end, read.tags):
            left_out += [each for each in offsets if each not in finished]
            yield
    if left_out and progress.offset == start and progress.reset is ResetState.NONE:
        progress.leave_out(left_out)
        if context.recording.on:
            context.recording.commit(group, queue, progress.offset, read.epoch, Committed(start))
