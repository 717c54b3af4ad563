"""One file per kind of extension; pyproject.toml says which entry-point group each belongs to."""
