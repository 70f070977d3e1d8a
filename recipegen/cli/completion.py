"""`recipegen completion`: the script that makes TAB work."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from recipegen.spec import RecipegenError


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      eval "$(recipegen completion bash)"
      recipegen completion fish > ~/.config/fish/completions/recipegen.fish
    """
    from recipegen.cli.main import cli

    maker = get_completion_class(shell)
    if maker is None:
        raise RecipegenError(f"no completion for {shell}")
    try:
        click.echo(maker(cli, {}, "recipegen", "_RECIPEGEN_COMPLETE").source())
    except RuntimeError as error:
        raise RecipegenError(str(error)) from None
