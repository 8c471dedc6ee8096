"""Where a coordinator keeps its state, and how it begins to lead there: a data folder, or a PostgreSQL database.

A folder is locked, so only one process can use it: it leads at once, and its term runs out only while that process does
not run. A copy of the folder may have been started then. In a database several processes contend
(`core/brokering/cluster/leadership`).
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lanemq.clock import Clock
from lanemq.core.brokering.cluster.leadership import NO_LEADER, Sight, Term, TermRow
from lanemq.log.folder.checks import coordinator_in, refuse_backup
from lanemq.log.folder.lock import DataLock
from lanemq.log.state.database import State
from lanemq.log.state.group_rows import GroupRows, Statements, Sync
from lanemq.model.errors import StorageError, UsageError

STATE_FILE = "state.db"
TERM = "term"
MOVED_TO = "moved to"
"""Names of values in the state database."""
_FOLDER = "folder"
"""The run of a folder. It is the same for ever: SQLite loses no commit, and a restored folder has new epochs."""


class NotLeading(StorageError):
    """This process leads no more; what it has in memory may be wrong."""


class Standby(NamedTuple):
    """A copy of a database."""

    name: str
    confirms: bool
    """Whether each change waits for it."""
    lag_bytes: int
    """What it has not applied yet; -1 if this user may not know."""


class Safety(NamedTuple):
    """What happens to a store whose machine fails."""

    standbys: tuple[Standby, ...] = ()
    problems: tuple[str, ...] = ()
    """What may lose changes."""


class StateStore(Protocol):
    """The rows of a cluster's groups, and the row that says who leads."""

    shared: bool
    """Whether several processes may use it."""
    shown: str
    """Its name for people."""
    term: Term | None
    """The last term of this process. Nothing is written without one."""
    former: Sight | None
    """A row whose leader certainly answers no more; None if that is not known."""
    last_write_ms: int
    """How long the last transaction took."""

    @property
    def group_rows(self) -> GroupRows: ...

    def connect(self) -> None:
        """Open it, again after an error."""

    def look(self) -> Sight: ...

    def claim(self, seen: Sight, row: TermRow) -> bool: ...

    def renew(self) -> None: ...

    def hand_over(self) -> None: ...

    def safety(self) -> Safety: ...

    def cut(self) -> None:
        """End a statement that waits for a silent server; any thread may call it."""

    def close(self) -> None: ...


class RowsOfTerm(GroupRows):
    """The rows as one term of this process uses them. What is left of an earlier term writes nothing in a later one."""

    def __init__(self, store: StateStore, term: Term) -> None:
        self._store = store
        self._term = term

    def rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        return self._store.group_rows.rows(query, values)

    @contextlib.contextmanager
    def transaction(self, sync: Sync) -> Iterator[Statements]:
        with self._of_this_term().transaction(sync) as db:
            yield db

    def together(self) -> AbstractContextManager[None]:
        return self._of_this_term().together()

    def close(self) -> None:
        """The store stays open for the next term."""

    def _of_this_term(self) -> GroupRows:
        if self._store.term is not self._term or self._term.ended:
            raise NotLeading(f"this coordinator does not lead any more: {self._term.ended or 'its term is over'}")
        return self._store.group_rows


class FolderStore:
    """A data folder that this process owns."""

    shared = False
    last_write_ms = 0

    def __init__(self, folder: Path, clock: Clock, *, moved: bool = False) -> None:
        """`moved`: may be used although its state was moved to a database, by a move that is repeated."""
        self._moved = moved
        self.shown = str(folder)
        self.term: Term | None = None
        self.former: Sight | None = None
        self._folder = folder
        self._clock = clock
        self._lock: DataLock | None = None
        self._state: State | None = None

    @property
    def group_rows(self) -> State:
        assert self._state is not None, "the folder is not open"
        return self._state

    def connect(self) -> None:
        """Lock the folder, and make it if it is missing. Refuses what is not that of a coordinator."""
        self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._lock = DataLock(self._folder)
        path = self._folder / STATE_FILE
        refuse_backup(self._folder)
        if path.exists() and coordinator_in(self._folder) is None:
            raise UsageError(f"{self._folder} is not the data folder of a coordinator: give it a folder of its own")
        self._state = State(path)
        if (moved := self._state.get(MOVED_TO)) is not None and not self._moved:
            raise UsageError(f"the state of {self._folder} was moved to {moved}: start it with --state, not --data")
        self.former = self.look()

    def look(self) -> Sight:
        return Sight(TermRow(int(self.group_rows.get(TERM) or 0), NO_LEADER), _FOLDER)

    def claim(self, seen: Sight, row: TermRow) -> bool:
        self.group_rows.put(TERM, str(row.term))
        self.term = Term(row, sent_at=self._clock.now())
        return True

    def renew(self) -> None:
        """This process runs. Nothing is written."""
        if self.term is not None:
            self.term.confirmed(sent_at=(now := self._clock.now()), now=now)

    def hand_over(self) -> None:
        if self.term is not None:
            self.term.end("handed over")

    def safety(self) -> Safety:
        """A folder has no copy but its backups."""
        return Safety()

    def cut(self) -> None:
        """The folder's disk is waited for, as by every program."""

    def close(self) -> None:
        if self._state is not None:
            self._state.close()
        if self._lock is not None:
            self._lock.close()
