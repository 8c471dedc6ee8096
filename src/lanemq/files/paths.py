"""The port: what pipelines need of a path. `pathlib.Path` is its local form, `RemotePath` the base of the others."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import BinaryIO, Protocol, Self


class StorePath(Protocol):
    """A file or folder. The methods are those of `pathlib.Path`, which is the local form."""

    @property
    def name(self) -> str: ...
    @property
    def stem(self) -> str: ...
    @property
    def suffix(self) -> str: ...
    @property
    def parent(self) -> Self: ...
    def __truediv__(self, name: str, /) -> Self: ...
    def absolute(self) -> Self: ...
    def exists(self) -> bool: ...
    def is_dir(self) -> bool: ...
    def iterdir(self) -> Iterable[Self]: ...
    def glob(self, pattern: str, /) -> Iterable[Self]: ...
    def read_bytes(self) -> bytes: ...
    def unlink(self, missing_ok: bool = False) -> None: ...
    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class RemotePath(ABC):
    """A file or folder that is reached over the network. Can be pickled, so tasks of Spark get it as it is."""

    root: str
    """Scheme and host or bucket, as the user wrote them."""
    key: str
    """The path below the root, without a slash at either end."""
    settings: tuple[tuple[str, str], ...] = ()
    """How to reach the store, beyond the environment."""

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0] or self.name

    @property
    def suffix(self) -> str:
        before, dot, after = self.name.rpartition(".")
        return f"{dot}{after}" if before else ""

    @property
    def parent(self) -> Self:
        return replace(self, key=self.key.rpartition("/")[0])

    def __truediv__(self, name: str, /) -> Self:
        return replace(self, key=f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"

    def absolute(self) -> Self:
        return self

    def glob(self, pattern: str, /) -> Iterator[Self]:
        """Entries of this folder whose name matches; none if the folder is missing."""
        try:
            yield from (each for each in self.iterdir() if fnmatchcase(each.name, pattern))
        except FileNotFoundError:
            return

    @abstractmethod
    def exists(self) -> bool: ...

    @abstractmethod
    def is_dir(self) -> bool: ...

    @abstractmethod
    def iterdir(self) -> Iterator[Self]:
        """The entries of a folder."""

    @abstractmethod
    def read_bytes(self) -> bytes:
        """The content; FileNotFoundError if the file is missing."""

    @abstractmethod
    def unlink(self, missing_ok: bool = False) -> None: ...

    @abstractmethod
    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None: ...

    @abstractmethod
    def put(self, content: bytes | BinaryIO) -> None:
        """Write a file that is there completely or not at all, and replaces one of the same name."""

    @abstractmethod
    def create(self, content: bytes) -> bool:
        """Like `put`, but False if the file is there with other content."""

    def _has(self, content: bytes) -> bool:
        """Whether the file has this content. False if it was removed since its creation was refused."""
        try:
            return self.read_bytes() == content
        except FileNotFoundError:
            return False

    @abstractmethod
    def move(self, target: Self) -> None:
        """Give a file another name; FileNotFoundError if it is missing. May replace the target."""

    @abstractmethod
    def files_below(self) -> Iterator[tuple[Self, int]]:
        """Every file in this folder and in those below it, with its bytes; nothing if the folder is missing."""

    def remove_files(self, paths: Sequence[Self]) -> None:
        """Remove files of the same store; missing ones are passed over."""
        for path in paths:
            path.unlink(missing_ok=True)

    @abstractmethod
    def remove_tree(self) -> None:
        """Remove a file or folder with everything in it; nothing happens if it is missing."""
