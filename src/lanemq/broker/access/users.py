"""Users and their rights: the TOML file of `--users`.

    [[user]]
    access_key = "billing"
    secret_key = "..."
    topics = { orders = "SUB", invoices = "PUB|SUB" }
    groups = { billing = "SUB" }

Rights are RocketMQ's (plain ACL): PUB, SUB, PUB|SUB or DENY. What is not listed is not allowed, and a file with a
mistake is refused as a whole, because the rest of it could grant what the faulty entry denies.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from pathlib import Path
from typing import Any, Final

from lanemq.model.errors import InvalidOption
from lanemq.model.names import RETRY_PREFIX, SCHEDULE_TOPIC

_OF_A_GROUP = re.compile(r"(?:%[A-Z]+%)+(.+)", re.DOTALL)
"""Topics that belong to a group: its retry and dead-letter topics, and those of Spark queries."""

MIN_SECRET_CHARS: Final = 6
"""As RocketMQ's PlainPermissionManager."""


class Right(IntFlag):
    """What a user may do with a topic or a group."""

    DENY = 0
    PUB = 1
    SUB = 2
    ANY = 3
    """As a requirement, PUB or SUB is enough; as a grant, both."""


@dataclass(frozen=True, slots=True)
class User:
    """One entry of the file."""

    access_key: str
    secret_key: str = field(repr=False)
    admin: bool = False
    """Whether the user may do everything."""
    topics: Mapping[str, Right] = field(default_factory=dict)
    groups: Mapping[str, Right] = field(default_factory=dict)
    default_topic: Right = Right.DENY
    default_group: Right = Right.SUB
    """The right for groups that are not listed, as in the file that RocketMQ ships. It allows to read as a group and to
    inspect it. To change a group or to own its queues, the user must list it."""

    def may_use_topic(self, name: str, wanted: Right) -> bool:
        """Whether the user may use a topic.

        A group's topics need a right to the listed group; the schedule topic is closed.
        """
        if self.admin:
            return True
        group = _OF_A_GROUP.fullmatch(name)
        if group is None:
            return name != SCHEDULE_TOPIC and bool(self.topics.get(name, self.default_topic) & wanted)
        if name.startswith(RETRY_PREFIX):
            wanted = Right.ANY  # members send failed messages there themselves, as in RocketMQ
        return bool(self.groups.get(group[1], Right.DENY) & wanted)

    def may_use_group(self, name: str) -> bool:
        """Whether the user may read as the group and inspect it."""
        return self.admin or bool(self.groups.get(_owner(name), self.default_group) & Right.SUB)

    def may_act_for(self, group: str) -> bool:
        """Whether the user may be a member and change the group's progress.

        No default grants this: every user could otherwise take the messages of every group that is not denied.
        """
        return self.admin or bool(self.groups.get(_owner(group), Right.DENY) & Right.SUB)


def _owner(group: str) -> str:
    of_a_group = _OF_A_GROUP.fullmatch(group)
    return group if of_a_group is None else of_a_group[1]


Users = Mapping[str, User]
"""Users by access key."""


def read_users(path: Path) -> Users:
    """Read all users of a file; `InvalidOption` names what is wrong, without any secret."""
    try:
        members = tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidOption(f"users file {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidOption(f"users file {path}: is not valid TOML: {error}") from None
    entries = members.pop("user", None)
    if members or not isinstance(entries, list) or not entries:
        raise InvalidOption(f"users file {path}: must consist of [[user]] entries, at least one, and nothing else")
    users: dict[str, User] = {}
    for number, entry in enumerate(entries, 1):
        user = _user(entry, f"users file {path}, user {number}")
        if user.access_key in users:
            raise InvalidOption(f"users file {path}, user {number}: access_key {user.access_key!r} is there already")
        users[user.access_key] = user
    return users


def without_secrets(users: Users) -> str:
    """Names and rights as JSON, for administrators."""
    return json.dumps(
        [
            {
                "access_key": each.access_key,
                "admin": each.admin,
                "topics": {name: right_text(right) for name, right in each.topics.items()},
                "groups": {name: right_text(right) for name, right in each.groups.items()},
                "default_topic": right_text(each.default_topic),
                "default_group": right_text(each.default_group),
            }
            for each in users.values()
        ]
    )


def right_text(right: Right) -> str:
    """As the file has it."""
    return "PUB|SUB" if right == Right.ANY else right.name or ""


def _user(entry: Any, where: str) -> User:
    if not isinstance(entry, dict):
        raise InvalidOption(f"{where}: is not a table; write a [[user]] entry with access_key and secret_key")
    unknown = set(entry) - set(User.__slots__)
    if unknown:
        raise InvalidOption(f"{where}: {min(unknown)} is none of {', '.join(User.__slots__)}")
    for name in ("access_key", "secret_key"):
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            raise InvalidOption(f"{where}: {name} is missing or empty")
    if len(entry["secret_key"]) < MIN_SECRET_CHARS:
        raise InvalidOption(f"{where}: secret_key is too short to be one, use {MIN_SECRET_CHARS} characters or more")
    if not isinstance(entry.get("admin", False), bool):
        raise InvalidOption(f"{where}: admin must be true or false")
    rights: dict[str, Any] = {
        name: _right(entry[name], f"{where}: {name}") for name in ("default_topic", "default_group") if name in entry
    }
    rights |= {name: _rights(entry[name], f"{where}: {name}") for name in ("topics", "groups") if name in entry}
    return User(entry["access_key"], entry["secret_key"], entry.get("admin", False), **rights)


def _rights(table: Any, where: str) -> dict[str, Right]:
    if not isinstance(table, dict):
        raise InvalidOption(f'{where} must be a table such as {{ orders = "PUB|SUB" }}')
    return {name: _right(text, f"{where}.{name}") for name, text in table.items()}


def _right(text: Any, where: str) -> Right:
    parts = [part.strip() for part in text.split("|")] if isinstance(text, str) else []
    if not parts or not set(parts) <= {"PUB", "SUB", "DENY"} or ("DENY" in parts and len(parts) > 1):
        raise InvalidOption(f"{where} is {text!r}, write PUB, SUB, PUB|SUB or DENY")
    return Right(sum(Right[part] for part in set(parts)))
