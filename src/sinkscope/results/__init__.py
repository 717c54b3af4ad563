"""What a run found: rows with intervals, claims judged from them, and both as text."""
