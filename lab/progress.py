"""How a run is going: a bar on a terminal, plain lines when piped."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar


class Progress:
    """Smoothed loss, tokens per second and time left, shown on a terminal or as a log line now and then."""

    def __init__(self, recipe: Any, quiet: bool = False) -> None:
        self.recipe, self.quiet = recipe, quiet
        self.loss, self.rate, self.pace = 0.0, 0.0, 0.0
        self._seen = 0
        self._last = time.monotonic()
        terminal = sys.stderr.isatty() and not quiet
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
        )
        self._bar = Bar(*columns) if terminal else None
        self._task: Any = None

    def __enter__(self) -> Progress:
        self._last = time.monotonic()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self.recipe.name, total=self.recipe.steps, text="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, step: int, loss: float, tokens: int, now: float) -> None:
        """Take in one step."""
        took, self._last = max(1e-6, now - self._last), now
        keep = min(0.97, self._seen / (self._seen + 1))
        self._seen += 1
        self.loss = keep * self.loss + (1 - keep) * loss
        self.pace = keep * self.pace + (1 - keep) * took
        self.rate = keep * self.rate + (1 - keep) * tokens / took
        if self._bar is not None:
            self._bar.update(self._task, completed=step, text=self.text(step))

    def text(self, step: int) -> str:
        """Loss, tokens per second and minutes left."""
        left = (self.recipe.steps - step) * self.pace / 60
        return f"loss {self.loss:.4f}  {self.rate:,.0f} tokens/s  {left:.1f} min left"

    def note(self, step: int, values: dict[str, Any]) -> None:
        """A line of the curve was written: say it, where there is no bar to say it."""
        self._last = time.monotonic()
        if self._bar is None and not self.quiet:
            more = ", ".join(f"{k} {v}" for k, v in values.items() if k not in ("loss", "norm", "seconds"))
            print(f"{self.recipe.name} step {step}/{self.recipe.steps}  {self.text(step)}  {more}", file=sys.stderr)
