"""Finished runs: their tables and summary, two of them compared, and one as an entry of the atlas."""
