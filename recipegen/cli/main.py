"""The command line: it parses and dispatches; this is the only place where an exception becomes a message."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence

import click

from recipegen import __version__
from recipegen.spec import RecipegenError

# name -> module in recipegen.cli that holds a command of that name; loaded when it is asked for.
_COMMANDS = {
    "new": "new",
    "plan": "plan",
    "check": "check",
    "diff": "diff",
    "review": "review",
    "import": "import_",
    "update": "update",
    "simulate": "simulate",
    "models": "models",
    "gallery": "gallery",
    "hardware": "hardware",
    "explain": "explain",
    "comment": "comment",
    "completion": "completion",
}


class _Commands(click.Group):
    """A group that imports a command's file only when that command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(importlib.import_module(f"recipegen.cli.{module}"), module)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"Did you mean `{near[0]}`?" if near else "`recipegen --help` lists the commands."
            raise click.UsageError(f"there is no command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with `recipegen plan --help`, or `recipegen new --help`.",
)
@click.version_option(__version__, prog_name="recipegen")
def cli() -> None:
    """From a model, data and a multi-GPU PCIe box to a fine-tune that fits, learns and runs.

    recipegen decides how to train (DDP, FSDP2, DeepSpeed; full, LoRA, QLoRA), says what it costs before
    anything is downloaded, and writes the files that Axolotl or Accelerate run.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and leave the process with its exit code.

    0 answered, fits or tight; 1 does not fit, errors found; 2 bad input or no answer; 130 interrupted; 3 a bug, with a
    log.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character still gets the answer
    code = run(args)
    try:
        if sys.stdout is not None:  # None: closed by the caller (`>&-`)
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away (`| head`); do not complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = _complain(f"cannot write the answer: {error.strerror}", 2)
    sys.exit(code)


def run(args: Sequence[str] | None = None) -> int:
    """The exit code of a command line; prints at most one line on stderr for an expected error."""
    try:
        os.getcwd()
        result = cli.main(
            args=list(args) if args is not None else None, prog_name="recipegen", standalone_mode=False, color=_colour()
        )
    except RecipegenError as error:
        return _complain(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "")
        return 0
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "recipegen"
        return _complain(f"{_one_line(error.format_message())} (see `{command} --help`)", 2)
    except click.ClickException as error:
        return _complain(_one_line(error.format_message()), 2)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted; nothing was written", 130)
    except SystemExit:
        return 0  # click's way of saying that the reader of the output went away
    except OSError as error:
        if error.errno == errno.EPIPE:
            return 0
        return _complain(f"{error.filename or 'the answer or the current folder'}: {error.strerror}", 2)
    except Exception:
        return _complain(f"this is a bug in recipegen; please report it with {_log()}", 3)
    return result if isinstance(result, int) else 0


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _colour() -> bool | None:
    """None: on a terminal only; False where NO_COLOR is set (https://no-color.org)."""
    return False if os.environ.get("NO_COLOR") else None


def _complain(text: str, code: int) -> int:
    line = "".join(character if character.isprintable() else "?" for character in text)  # names of files and models
    click.echo(click.style("error: ", fg="red", bold=True) + line, err=True, color=_colour())
    return code


def _log() -> str:
    handle, path = tempfile.mkstemp(prefix="recipegen-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"recipegen {__version__}, Python {sys.version}\n")
        traceback.print_exc(file=file)
    return path


if __name__ == "__main__":
    main()
