"""The command `new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the project and of its new folder.")],
) -> None:
    """Write a small project that runs.

    It has an agent with two tools, its test, settings and a compose file.

    An existing folder is never changed.

    \b
    Example:
      celery-agents new my_shop
    """
    from ..local.new_project import check_project_name, write_project

    folder, files = write_project(name, Path.cwd())
    print(f"{folder}:")
    for file in files:
        print(f"  {file}")
    print(
        "\nNext:\n"
        f"  cd {name}\n"
        "  pip install pytest && python -m pytest                          the agent under faults, without Redis\n"
        f"  celery-agents up --agents {check_project_name(name)}.agents --reload\n"
        '  celery-agents submit support "Order 17 arrived broken" --wait   in another terminal'
    )
