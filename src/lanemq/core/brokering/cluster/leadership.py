"""Which of several coordinators leads. Their only common place is a row in the store: who leads, and under which term.

Invariant: at no moment do two of them answer members. Two rules keep it, and neither compares clocks of two machines:

1. A leader answers only while its term is valid: `TERM_MS` on its own clock, counted from before it sent the last
   transaction that the store confirmed. Every transaction renews the term, and names the one before it. So a leader
   that was replaced, and one whose store has lost commits, writes nothing any more. A term that has run out once is
   over: another leader may have come and gone, with a store that went back to the row of the first.
2. A contender replaces a leader after it has seen the same row for `WAIT_MS` on its own clock, in the same run of the
   server. It replaces exactly the row that it has seen. Times of the server play no part: after a fail-over they are
   those of another machine.

A store that goes back to an earlier state may show a row again that was replaced since, also one without a leader,
while the last leader still answers. Such a store was restarted, restored or promoted, which makes it another run; in
one run, rows only follow each other. Two terms may have the same number, so a leader also has a random id, a new one
for each term.
"""

from typing import NamedTuple

from lanemq.model.units import Millis

TERM_MS = Millis(2_000)
"""How long a leader answers after it sent a transaction. Long: groups pause longer after its death. Short: a database
that is slow for a moment pauses them."""
WAIT_MS = Millis(TERM_MS + TERM_MS // 8)
"""How long a contender waits: clocks that run 5 % too fast or too slow do no harm."""
RENEW_EVERY_MS = Millis(400)
LOOK_EVERY_MS = Millis(200)

NO_LEADER = ""


class TermRow(NamedTuple):
    """The row in the store."""

    term: int = 0
    leader: str = NO_LEADER
    """The random id of the leader of this term; empty before the first one, and after a leader has handed over."""
    serial: int = 0
    """Transactions of this term."""
    address: str = ""
    """Where members reach the leader."""


class Sight(NamedTuple):
    """What a contender saw of the store."""

    row: TermRow
    run: str
    """Names the run of the server: another one after a restart, a restore or a promotion."""


class Contender:
    """Waits until this process may lead."""

    def __init__(self, former: Sight | None = None) -> None:
        """`former` is the row with which this process led, or tried to; under that id it answers no more."""
        self._former = None if former is None else (former.row.leader, former.run)
        self._seen: Sight | None = None
        self._since = Millis(0)
        self._handed_over = False

    def saw(self, sight: Sight, *, now: Millis) -> None:
        """A look at the store. `now` is when its answer was here: the leader may have renewed since it was sent."""
        last = self._seen
        if sight == last:
            return
        # The end of a term counts if it happened in this run, before the eyes of this process.
        followed = last is not None and last.run == sight.run
        self._handed_over = followed and sight.row.leader == NO_LEADER
        self._seen, self._since = sight, now

    def replaceable(self, *, now: Millis) -> Sight | None:
        """What this process may replace, if it is still the same; None if it must wait."""
        if self._seen is None:
            return None
        free = self._handed_over or (self._seen.row.leader, self._seen.run) == self._former
        return self._seen if free or now - self._since >= WAIT_MS else None


class Term:
    """A term of this process, from the transaction that began it until it ends for good.

    Any thread may ask `answers`; the transactions are those of one thread.
    """

    def __init__(self, begun: TermRow, *, sent_at: Millis, length: Millis = TERM_MS) -> None:
        """`sent_at` is when the transaction that began it was sent, on this process's clock. `length` is how long each
        transaction lets it answer."""
        self.number = begun.term
        self.leader = begun.leader
        self.address = begun.address
        self.serial = begun.serial
        """Of the last transaction that the store confirmed."""
        self.ended = ""
        """Why this process does not lead any more; empty while it does."""
        self._length = length
        self._valid_until = Millis(sent_at + length)

    @property
    def row(self) -> TermRow:
        """The row as the last confirmed transaction left it."""
        return TermRow(self.number, self.leader, self.serial, self.address)

    def answers(self, *, now: Millis) -> bool:
        """Whether this process may answer members now, and send a transaction."""
        return not self.ended and now < self._valid_until

    def confirmed(self, *, sent_at: Millis, now: Millis) -> None:
        """A transaction that followed the last one is in the store."""
        self.serial += 1
        self._valid_until = max(self._valid_until, Millis(sent_at + self._length))
        self.check(now=now)

    def check(self, *, now: Millis) -> bool:
        """Whether this process leads; ends a term that has run out."""
        if now >= self._valid_until:
            self.end(f"the store confirmed nothing for {self._length / 1000:g} s")
        return not self.ended

    def end(self, reason: str) -> None:
        """Another one leads, the store has gone back, or the outcome of a transaction is not known.

        In the last case the transaction may be in the store or not, so nothing in memory is certain any more.
        """
        self.ended = self.ended or reason


def claim(seen: TermRow, leader: str, address: str, *, known: int = 0) -> TermRow:
    """The row with which a contender replaces the one that it saw. `known` is the highest term that it knows from
    elsewhere: a store that went back has a lower one, which members would ignore."""
    return TermRow(max(seen.term, known) + 1, leader, 0, address)


def is_complete(replaced: Sight, led_in: str | None, former: TermRow | None, known: int = 0) -> bool:
    """Whether a new leader certainly has every transaction that a leader before it has confirmed.

    `replaced` is the row that it replaced, `led_in` the run of the server that the last leader has noted in the store,
    None if there was no leader yet. `former` is the row as this process's own last term left it, `known` the highest
    term that it knows of.

    In one run, nothing is lost. After a restart of the server, only who led before can tell: the row still names it,
    with all of its transactions, and nobody has led since, whose whole term may be lost. Nothing else proves it: a
    restored copy may have the same identifier and timeline.
    """
    if led_in is None or led_in == replaced.run:
        return True
    row = replaced.row
    return former is not None and known <= former.term and row[:2] == former[:2] and row.serial >= former.serial
