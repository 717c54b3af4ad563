"""Where a run stands: one safetensors file with weights, means and optimiser state, written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lab.checks import read_yaml
from lab.errors import TrainingError
from lab.recipe import Recipe

if TYPE_CHECKING:
    from lab.adaptation import Adaptation
    from lab.block_recipe import BlockRecipe

STATE, RECIPE, CURVE = "state.safetensors", "recipe.yaml", "curve.jsonl"


def open_folder(out: Path, recipe: Recipe | Adaptation | BlockRecipe, resume: bool) -> None:
    """Make the folder of a run, or check that it belongs to this recipe; a fresh start needs an empty folder."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        known = out / RECIPE
        if known.is_file():
            if not resume:
                raise TrainingError(f"{out} holds a run already; resume it, or choose another folder.")
            held = read_yaml(known)
            mine = recipe.fingerprint()
            # A field that the recipe got after the run was begun had its default then.
            defaults = {one.name: one.default for one in dataclasses.fields(recipe)}
            begun = {**defaults, **(held if isinstance(held, dict) else {})}
            other = sorted(key for key in mine if begun[key] != mine[key])
            if other:
                raise TrainingError(
                    f"{out} belongs to another recipe (it differs in {', '.join(other)}); choose another folder."
                )
        elif any(out.iterdir()):
            raise TrainingError(f"{out} is not empty and holds no training run; choose another folder.")
        write_text(known, yaml.safe_dump(recipe.to_dict(), sort_keys=False))
    except (OSError, yaml.YAMLError) as error:
        raise TrainingError(f"{out} cannot be used as a training folder ({error}); choose another one.") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save_state(out: Path, step: int, seconds: float, tensors: dict[str, Tensor]) -> None:
    """Put the state after `step` steps in place of the one before, by one rename."""
    temporary = out / (STATE + ".part")
    note = json.dumps({"step": step, "seconds": round(seconds, 1)})
    try:
        save_file({k: v.detach().contiguous() for k, v in tensors.items()}, temporary, metadata={"run": note})
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, out / STATE)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise TrainingError(
            f"the state at step {step} could not be written to {out} ({error}); free some space and resume."
        ) from error


def load_state(out: Path) -> tuple[int, float, dict[str, Tensor]] | None:
    """Step, seconds so far and tensors of the last saved state; None if there is none yet."""
    path = out / STATE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            note: dict[str, Any] = json.loads(file.metadata()["run"])
            return int(note["step"]), float(note["seconds"]), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"{path} is not a whole training state ({error}); delete it to start again.") from error


def cut_curve(out: Path, step: int) -> None:
    """Drop the lines of the curve that were written after the saved state; they are about to be made again."""
    path = out / CURVE
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue  # the half line of a killed process
    write_text(path, "".join(line + "\n" for line in kept))


def append_curve(out: Path, values: dict[str, Any]) -> None:
    """Add one line to the curve."""
    with (out / CURVE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def read_curve(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's curve."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} is not a curve of a training run ({error}); name a curve.jsonl.") from error
