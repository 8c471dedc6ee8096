"""Columns as text, `id bigint, name string`, read without a running Spark.

Spark's own parser is in the JVM, so with it a declaration could be checked only after Spark has started.

Invariant: Spark's parser reads everything that this one accepts as the same types. Unknown types are refused.
"""

import re
from collections.abc import Iterator
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lanemq.model.errors import InvalidOption

_PLAIN: Final[dict[str, DataType]] = {
    "boolean": BooleanType(), "tinyint": ByteType(), "byte": ByteType(), "smallint": ShortType(),
    "short": ShortType(), "int": IntegerType(), "integer": IntegerType(), "bigint": LongType(), "long": LongType(),
    "float": FloatType(), "real": FloatType(), "double": DoubleType(), "string": StringType(),
    "binary": BinaryType(), "date": DateType(), "timestamp": TimestampType(), "timestamp_ntz": TimestampNTZType(),
}  # fmt: skip
_TOKEN: Final = re.compile(r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<word>\w+)|(?P<mark>[<>(),:]))")


def parse_columns(text: str) -> StructType:
    """The columns in order; `InvalidOption` says what is wrong with the text."""
    reader = _Reader(text)
    fields = [reader.column()]
    while reader.took(","):
        fields.append(reader.column())
    reader.end()
    return StructType(fields)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_tokens(text), ""]
        self._at = 0

    def column(self) -> StructField:
        name = self._next()
        self.took(":")
        kind = self._type()
        nullable = True
        if self._peek().lower() == "not":
            self._next()
            self._expect("null")
            nullable = False
        return StructField(name, kind, nullable)

    def _type(self) -> DataType:
        name = self._next().lower()
        if name == "decimal" or name == "numeric":
            return self._decimal()
        if name == "array":
            return ArrayType(self._inside(1)[0])
        if name == "map":
            key, item = self._inside(2)
            return MapType(key, item)
        if name == "struct":
            return self._struct()
        if name in _PLAIN:
            return _PLAIN[name]
        raise self._wrong(f"there is no type {name!r}")

    def _decimal(self) -> DecimalType:
        if not self.took("("):
            return DecimalType()
        precision, scale = self._number(), self._number() if self.took(",") else 0
        self._expect(")")
        if not scale <= precision <= 38:
            raise self._wrong(f"decimal({precision},{scale}) has more than 38 digits, or a scale above its precision")
        return DecimalType(precision, scale)

    def _inside(self, count: int) -> list[DataType]:
        self._expect("<")
        found = [self._type()]
        while len(found) < count:
            self._expect(",")
            found.append(self._type())
        self._expect(">")
        return found

    def _struct(self) -> StructType:
        self._expect("<")
        fields = [self.column()]
        while self.took(","):
            fields.append(self.column())
        self._expect(">")
        return StructType(fields)

    def _number(self) -> int:
        word = self._next()
        if not word.isdigit():
            raise self._wrong(f"{word!r} is not a number of digits")
        return int(word)

    def took(self, mark: str) -> bool:
        if self._peek() != mark:
            return False
        self._at += 1
        return True

    def end(self) -> None:
        if self._peek():
            raise self._wrong(f"{self._peek()!r} is unexpected")

    def _peek(self) -> str:
        return self._tokens[self._at]

    def _next(self) -> str:
        word = self._peek()
        if not word or word in "<>(),:":
            raise self._wrong("a name is missing")
        self._at += 1
        return word

    def _expect(self, word: str) -> None:
        if self._peek().lower() != word:
            raise self._wrong(f"{word!r} is missing")
        self._at += 1

    def _wrong(self, what: str) -> InvalidOption:
        return InvalidOption(f"schema {self._text!r}: {what}; write it like 'id bigint, price decimal(10,2)'")


def _tokens(text: str) -> Iterator[str]:
    at, rest = 0, text.rstrip()
    while at < len(rest):
        found = _TOKEN.match(rest, at)
        if found is None:
            raise InvalidOption(f"schema {text!r}: {rest[at]!r} is unexpected; quote names with `")
        quoted = found["quoted"]
        yield quoted.replace("``", "`") if quoted else found[found.lastgroup or 0]
        at = found.end()
