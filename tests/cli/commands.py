"""The command as users run it, and the ids that it must give."""

import contextlib
import io
import subprocess
import sys

from tokenizers import Tokenizer

from headrace.cli import main
from preparation.texts import sentences

HEADRACE = [sys.executable, "-m", "headrace"]
TEXTS = list(sentences(400))


def headrace(*arguments, **options):
    return subprocess.run(
        [*HEADRACE, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False, **options
    )


def headrace_here(*arguments):
    """The same without a process of its own, for commands that start none and read no environment."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code or 0
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


def reference(tokenizer, texts):
    loaded = Tokenizer.from_file(str(tokenizer))
    end = loaded.token_to_id("<|endoftext|>")
    return [i for text in texts for i in [*loaded.encode(text, add_special_tokens=False).ids, end]]


def one_error_line(finished, *parts):
    assert finished.returncode != 0
    (line,) = finished.stderr.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert str(part) in line
    assert finished.stdout == ""
