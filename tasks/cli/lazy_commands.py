"""The commands by module: a module is imported when one of its commands is asked for.

All modules together take a tenth of a second to import, which is a tenth of what a worker needs to start.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Start": ("demo", "new", "up", "worker", "serve", "flower"),
    "Jobs": ("submit", "send", "watch", "show", "list", "stop", "retry"),
    "People": ("requests", "approve", "deny", "answer"),
    "Sessions": ("suspend", "resume", "fork", "clear", "snapshot", "restore", "trace", "delete"),
    "Operation": ("doctor", "health", "workers"),
}
"""The commands as the help lists them."""

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "run_commands": ("up", "worker", "flower"),
    "serve_command": ("serve",),
    "job_commands": ("submit", "send", "stop", "retry"),
    "request_commands": ("requests", "approve", "deny", "answer"),
    "holding_commands": ("suspend", "resume"),
    "session_commands": ("fork", "clear", "snapshot", "restore", "trace"),
    "read_commands": ("watch", "show", "list"),
    "delete_command": ("delete",),
    "workers_command": ("workers",),
    "doctor_command": ("doctor",),
    "health_command": ("health",),
    "new_command": ("new",),
    "demo_command": ("demo",),
}
"""The modules of this room with commands, and the names of these."""

COMMANDS: Final[Mapping[str, str]] = {name: module for module, names in MODULES.items() for name in names}
"""The module of each command."""

_HELP_WIDTH: Final = 80


class LazyCommands(TyperGroup):
    """A group that imports the module of a command when the command is asked for; help and a wrong name ask for all."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the names of all commands."""
        return [name for names in SECTIONS.values() for name in names]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands into the help, by section, each with the first sentence of its own help."""
        widest = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                commands = [(name, self.get_command(ctx, name)) for name in names]
                formatter.write_dl(
                    [(name.ljust(widest), each.get_short_help_str(_HELP_WIDTH)) for name, each in commands]
                )

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command; None for an unknown name, for which the group suggests others."""
        for module in (COMMANDS[cmd_name],) if cmd_name in COMMANDS else MODULES:
            if self.commands.keys().isdisjoint(MODULES[module]):
                self.commands.update(commands_of(module))
        return super().get_command(ctx, cmd_name)


def commands_of(module: str) -> Mapping[str, Any]:
    """Import a module and make its commands, each of the function with its name."""
    registered = typer.Typer(rich_markup_mode=None)
    functions = vars(import_module(f".{module}", __package__))
    for name in MODULES[module]:
        registered.command(name)(functions["list_" if name == "list" else name])  # `list` would hide Python's
    return typer.main.get_group(registered).commands
