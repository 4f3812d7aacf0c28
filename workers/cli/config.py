"""`config show`: every setting and where its value came from."""

from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.output import Answer

config = group("config", "Settings and where they come from.")


@command(config, "show", examples=["sexton config show", "SEXTON_DELETION_CHUNK=50 sexton config show --json"])
def show(context: CommandContext) -> Answer:
    """Show each setting's value and origin; secrets are masked."""
    from infra.catalog.engine.urls import shown_url  # noqa: PLC0415 - start-up time

    loaded = context.loaded
    values = loaded.settings.model_dump(mode="json")
    values["database_url"] = shown_url(values["database_url"])
    rows = [
        {"name": name, "value": None if value == "" else value, "origin": loaded.origins[name]}
        for name, value in values.items()
    ]
    return Answer(document=rows, shown=[row | {"value": _text(row["value"])} for row in rows])


def _text(value: object) -> str | None:
    return None if value is None else str(value)  # as it would be typed: no thousands separators
