"""The `atypicality` command: its list of commands, and what becomes of errors.

A user's mistake is one line on stderr and exit code 2; a warning is one line too; a bug is a traceback.
"""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from atypicality._version import __version__
from atypicality.cli import (
    answers,
    demo,
    evaluate,
    export,
    fit,
    llm,
    monitor,
    pack,
    predict,
    refit,
    report,
    reproduce,
    serve,
    show,
    theory,
)
from atypicality.cli.options import current, examples
from atypicality.cli.printing import one_line
from atypicality.terminal import reporting

__all__ = ["app", "execute"]

_UsageMistake: type[Exception] = typer.BadParameter.__mro__[2]  # click's own or typer's copy of it, by version

COMPLETING = "_ATYPICALITY_COMPLETE"  # environment variable that shells set when they want completions


class _ClassifyByDefault(TyperGroup):
    """`atypicality llm --model ...` without a command's name is `atypicality llm classify --model ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args[:1] and (args[0] in self.commands or args[0] in ("-h", "--help"))
        return super().parse_args(ctx, args if named else ["classify", *args])


app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})
language_models = typer.Typer(
    cls=_ClassifyByDefault, rich_markup_mode=None, help="Language models: labels and answers."
)
language_models.command("classify", epilog=examples(llm.EXAMPLES))(llm.command)
language_models.command("answers", epilog=examples(answers.EXAMPLES))(answers.command)
for module in (demo, pack, fit, show, predict, evaluate, report, refit, export, serve, monitor, llm, reproduce, theory):
    name = module.__name__.rpartition(".")[2]
    if module is llm:
        app.add_typer(language_models, name=name)
    else:
        app.command(name, epilog=examples(module.EXAMPLES))(module.command)


def execute(arguments: list[str]) -> int:
    """Run the command with these arguments and return the exit code.

    >>> execute(["--version"])
    atypicality ...
    0
    """
    command = get_command(app)
    try:
        if COMPLETING in os.environ:  # a shell asks what may stand next
            command.main([], prog_name="atypicality")
        with (
            _plain_warnings(),
            _any_text(),
            command.make_context("atypicality", current(arguments)) as context,
        ):
            token = reporting.set(True)  # lines of progress where stderr is no terminal
            try:
                command.invoke(context)
            finally:
                reporting.reset(token)
        return 0
    except SystemExit as end:  # after showing or installing completion
        return int(end.code or 0)
    except typer.Exit as end:
        return end.exit_code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stdout = None  # or the interpreter would complain when it flushes
        return 1
    except Exception as error:
        if not _is_mistake(error):
            raise
        typer.echo(f"atypicality: {one_line(_message(error))}", err=True)
        return 2


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Reliability for any trained classifier: how rare is an input, and which predictions can be trusted."""
    if version:
        typer.echo(f"atypicality {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings without the place in our code that they come from."""
    own = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"atypicality: warning: {one_line(message)}\n"
    try:
        yield
    finally:
        warnings.formatwarning = own


@contextlib.contextmanager
def _any_text() -> Iterator[None]:
    """Let a terminal that lacks a character show its code, as stderr does by itself."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    own = stream.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        stream.reconfigure(errors=own)


def _is_mistake(error: Exception) -> bool:
    """Whether the user can change it: bad usage, a missing file or package, or values that a check refused."""
    if isinstance(error, (_UsageMistake, OSError)):
        return True
    if isinstance(error, ModuleNotFoundError):  # an optional package, with what to install; others are our own fault
        return "pip install" in str(error)
    from atypicality.validation.refusals import is_refusal

    return is_refusal(error) or type(error).__name__ == "NotConvergedError"  # other rows or settings converge


def _message(error: Exception) -> str:
    if isinstance(error, _UsageMistake):
        told = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        return f"{told}{'' if told.endswith('?') else '.'} Try --help."
    return str(error)
