"""One file a command, or a few that belong together; each is a function under `@command()` and is found by being here."""
