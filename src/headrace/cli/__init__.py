"""The command `headrace`: tokenize, convert, cp, plan, inspect, verify, publish, cache. One module a group of commands.

Every failure ends with an exit code that is not 0: 1 with one line that says what to do, 2 for a wrong command line,
130 after Ctrl-C. Results go to standard output, progress and errors to standard error.
"""

import os
import sys
from collections.abc import Sequence

import typer

from headrace.cli.cache import EXAMPLE as CACHE_EXAMPLE
from headrace.cli.cache import cache
from headrace.cli.convert import EXAMPLE as CONVERT_EXAMPLE
from headrace.cli.convert import convert
from headrace.cli.copy import EXAMPLE as COPY_EXAMPLE
from headrace.cli.copy import copy
from headrace.cli.looking import inspect, publish, verify
from headrace.cli.plan import EXAMPLE as PLAN_EXAMPLE
from headrace.cli.plan import plan
from headrace.cli.terminal import say
from headrace.cli.tokenize import EXAMPLE as TOKENIZE_EXAMPLE
from headrace.cli.tokenize import tokenize
from headrace.errors import HeadraceError

__all__ = ["app", "main"]

app = typer.Typer(
    name="headrace",
    help="Headrace takes raw data to training batches. Here: text to token shards, datasets of one kind to another "
    "and from one place to another, which samples a run will see, and a look at what is there.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command(epilog=TOKENIZE_EXAMPLE)(tokenize)
app.command(epilog=CONVERT_EXAMPLE)(convert)
app.command(name="cp", epilog=COPY_EXAMPLE)(copy)
app.command(epilog=PLAN_EXAMPLE)(plan)
app.command(epilog="Example: `headrace inspect tokens --json | jq .total_length`")(inspect)
app.command(epilog="Example: `headrace verify tokens && echo all is well`")(verify)
app.command(epilog="Example: `headrace publish tokens`")(publish)
app.command(epilog=CACHE_EXAMPLE)(cache)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave the process with its exit code."""
    try:
        app(args=None if arguments is None else list(arguments))
    except HeadraceError as error:
        say(f"error: {error}")
    except BrokenPipeError:
        # The reader of a pipe such as `| head` has enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk, a missing permission
        say(f"error: {error}")
    sys.exit(1)
