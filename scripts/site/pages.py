"""Pages of the site that are made from the code: the API from docstrings, and every command from its help."""

import importlib
import inspect
from collections.abc import Iterator

import click

from lanemq.cli.main import main

API = {
    "client": ("Producers, consumers, administration", "lanemq"),
    "effects": ("Effects in your database", "lanemq.effects"),
    "errors": ("Error classes", "lanemq.errors"),
    "pipelines": ("Pipelines in Python", "lanemq.pipelines"),
    "spark": ("Spark in Python", "lanemq.spark"),
    "testing": ("Testing kit", "lanemq.testing"),
}
"""Name of the page, its title, and the module whose public names it lists."""
FIRST = ("App", "Producer", "AsyncProducer", "Consumer", "AsyncConsumer", "Admin", "Message", "Pipeline", "once")
"""What readers look for comes first; the rest follows by name."""

MACHINERY = {
    "App": ("prepared", "subscriptions"),
    "Message": ("decoded_by", "source"),
    "Producer": ("forked", "end_with_program"),
    "AsyncProducer": ("forked", "end_with_program"),
    "PullConsumer": ("forked",),
    "AsyncAdmin": ("call_blocking",),
    "AsyncParkedAdmin": ("call_blocking",),
}
"""Methods of public classes that only other modules of LaneMQ call; readers would take them for something to call."""


def api_pages() -> Iterator[tuple[str, str]]:
    """Path below `reference/` and text of each page of the API, the list of them last."""
    for page, (title, module) in API.items():
        yield f"api/{page}.md", f"# {title}\n\n" + "\n".join(_entries(module))
    lines = "\n".join(f"| [{title}](api/{page}.md) | `{module}` |" for page, (title, module) in API.items())
    yield (
        "api.md",
        f"# API\n\nEvery public name, from the docstrings of this version.\n\n| page | module |\n|---|---|\n{lines}\n",
    )


def _entries(module: str) -> Iterator[str]:
    package = importlib.import_module(module)
    errors = {*importlib.import_module("lanemq.errors").__all__}
    yield f"Import from `{module}`. {(package.__doc__ or '').strip().splitlines()[0]}\n"
    names = [name for name in package.__all__ if module == "lanemq.errors" or name not in errors]
    for name in sorted(names, key=lambda each: FIRST.index(each) if each in FIRST else len(FIRST)):
        yield f"## {name}\n\n```{{eval-rst}}\n{_directive(module, name, getattr(package, name))}\n```\n"


def _directive(module: str, name: str, value: object) -> str:
    if inspect.isfunction(value):
        return f".. autofunction:: {module}.{name}"
    if not inspect.isclass(value):
        return f".. autodata:: {module}.{name}"
    if issubclass(value, Exception):
        return f".. autoclass:: {module}.{name}\n   :show-inheritance:"
    bases = "dict, ABC, Enum, Struct, object"
    left_out = f"\n   :exclude-members: {', '.join(MACHINERY[name])}" if name in MACHINERY else ""
    return f".. autoclass:: {module}.{name}\n   :members:\n   :inherited-members: {bases}{left_out}"


def commands_page() -> str:
    """The help of every command, as it is printed."""
    context = click.Context(main, info_name="lanemq")
    parts = ["# Every command\n\nWhat `--help` prints. [Command line](command-line.md) has the overview.\n"]
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        parts += _help(
            command, click.Context(command, context, f"lanemq {name}", max_content_width=88, terminal_width=88)
        )
    return "\n".join(parts)


def _help(command: click.Command, context: click.Context) -> Iterator[str]:
    name = context.info_name or ""
    yield f"{'##' if name.count(' ') == 1 else '###'} {name}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            if inner is not None and not inner.hidden:
                below = click.Context(inner, context.parent, f"{name} {each}", max_content_width=88, terminal_width=88)
                yield from _help(inner, below)
