"""One file a command, or a few that belong together; each has `register(app)` and is found by being here."""
