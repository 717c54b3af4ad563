"""From stored units to results: typed rows, tables, verdicts."""
