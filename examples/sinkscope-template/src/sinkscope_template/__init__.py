"""One file per kind of extension; pyproject.toml names each in the entry-point group `sinkscope.plugins`."""
