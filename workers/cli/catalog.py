"""`catalog upgrade`: bring a catalog to this build's version."""

from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.output import Answer

catalog = group("catalog", "The SQL catalog.")


@command(catalog, "upgrade", examples=["sexton catalog upgrade", "sexton catalog upgrade --json"])
def upgrade(context: CommandContext) -> Answer:
    """Create the catalog's tables, or bring them to this build's version; repeating it is harmless."""
    return Answer(document=context.services.upgrade(context.settings))
