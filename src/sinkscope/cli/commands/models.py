"""`sinkscope models`: what can be loaded here without a network."""

from __future__ import annotations

from sinkscope.cli.app import command
from sinkscope.cli.options import JsonFlag
from sinkscope.cli.screen import output, print_json, table_of


@command()
def models(as_json: JsonFlag = False) -> None:
    """List the models that come with sinkscope, and the families that it can load."""
    from sinkscope.models import zoo
    from sinkscope.models.load import families as known

    rows = zoo.describe()
    families = [family.name for family in known() if family.tested != "refused"]
    if as_json:
        print_json({"models": rows, "families": families})
        return
    console = output()
    shown = [(row["name"], row["what"], "yes" if row["here"] else "no") for row in rows]
    console.print(table_of(("name", "what", "here"), shown))
    console.print(f"\nAlso: a folder with config.json and safetensors, a GGUF file, or a Hub id.\n"
                  f"Families: {', '.join(families)}.")  # fmt: skip
