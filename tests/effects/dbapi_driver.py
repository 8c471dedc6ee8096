"""A DB-API driver that nothing in LaneMQ knows: SQLite behind named values and rows as dictionaries.

SQLite has no `FOR UPDATE` and takes whole files instead of rows, so the driver leaves it out and begins as a writer.
"""

import re
import sqlite3
from typing import Any

paramstyle = "named"


class Cursor:
    def __init__(self, cursor: sqlite3.Cursor, statements: list[str]) -> None:
        self._cursor = cursor
        self._statements = statements

    @property
    def description(self) -> Any:
        return self._cursor.description

    def execute(self, sql: str, values: dict[str, Any] | None = None) -> None:
        self._statements.append(sql)
        if not self._cursor.connection.in_transaction:
            self._cursor.execute("BEGIN IMMEDIATE")
        understood = re.sub(r" FOR UPDATE$|, INDEX \w+ \(\w+\)", "", sql)  # MySQL has both, SQLite neither
        self._cursor.execute(understood, values or {})

    def fetchall(self) -> list[dict[str, Any]]:
        names = [column[0] for column in self._cursor.description]
        return [dict(zip(names, row, strict=True)) for row in self._cursor.fetchall()]

    def close(self) -> None:
        self._cursor.close()


class Connection:
    """`statements` is everything that was executed, as the driver got it."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self.statements: list[str] = []

    def cursor(self) -> Cursor:
        return Cursor(self._connection.cursor(), self.statements)

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()
