"""Commands whose main option may also stand alone: `trainer run show 1` is `trainer run show --run 1`.

Every command with one of `MAIN_OPTIONS` and no argument of its own takes both forms; `take_alone` gives it to a whole
command line, once all its commands are there.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

MAIN_OPTIONS = ("--run", "--owner", "--url")
"""What a command is about, where it has one of these."""


class StandingAlone(TyperCommand):
    """Takes one word without an option's name as the main option, where that isn't given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the main option's name before the word that stands alone."""
        main = self._find_main()
        if main is not None:
            given, alone, _ = self.make_parser(ctx).parse_args(args=list(args))
            if len(alone) == 1 and main.name not in given:
                rest = list(args)
                rest.remove(alone[0])
                args = [main.opts[0], alone[0], *rest]
        return super().parse_args(ctx, args)

    def _find_main(self) -> TyperOption | None:
        if any(isinstance(each, TyperArgument) for each in self.params):
            return None
        options = [each for each in self.params if isinstance(each, TyperOption)]
        return next((each for each in options if set(MAIN_OPTIONS) & set(each.opts)), None)


def take_alone(app: typer.Typer) -> None:
    """Let the main options of all commands of a command line stand alone."""
    for command in app.registered_commands:
        if command.cls is None or command.cls is TyperCommand:
            command.cls = StandingAlone
    for group in app.registered_groups:
        if group.typer_instance is not None:
            take_alone(group.typer_instance)
