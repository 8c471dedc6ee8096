"""Structs whose fields are read while their module is imported, by one thread.

msgspec reads the fields of a struct when the struct is decoded for the first time, and notes the result on the class
before it is complete. A second thread that decodes the class in this moment follows a null pointer, and the process
ends with a segmentation fault (msgspec 0.22; it happened with ten producers that a program started at once).
"""

import sys

import msgspec


def prepare_structs(module: str) -> None:
    """Has msgspec read the fields of all structs of a module. The module calls it at its end."""
    for kind in [*vars(sys.modules[module]).values()]:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module:
            msgspec.json.Decoder(kind)
