"""Conditions of a study that change how a model decodes, not what its attention does: its cache, or a deleted token.

They stand beside `none` like interventions do, so that answers with and without a cache are compared problem by problem.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from sinkscope.decoding.settings import CACHES, SparseCache
from sinkscope.errors import DecodeError, SinkscopeError
from sinkscope.fields import Allowed, among, whole
from sinkscope.interventions.positions import POSITIONS
from sinkscope.interventions.settings import Registered, Setting, add
from sinkscope.validation import validate


def _sparse(values: dict[str, Any]) -> dict[str, Any]:
    return {"cache": SparseCache(**values).to_dict()}


def _wrong(values: dict[str, Any]) -> tuple[str, str] | None:
    try:
        _sparse({name: value for name, value in values.items() if value is not None})
    except SinkscopeError as error:
        return "", f"is wrong: {str(error).rstrip('.')}"
    return None


def _setting(name: str, default: Any, label: Callable[[Any], str], place: int, quiet: bool = False) -> Setting:
    kind = get_type_hints(SparseCache, include_extras=True)[name]

    def fits(value: Any) -> bool:
        try:
            validate(kind, value, name, DecodeError)
        except DecodeError:
            return False
        return True

    allowed = Allowed(f"what SparseCache({name}=…) takes", fits)
    return Setting(name, default, allowed, label=label, place=place, quiet=quiet)


SPARSE = (
    _setting("by", "received", lambda by: f"by {by}", 10),
    _setting("keep", 0.25, lambda keep: f"keep={keep:g}", 20),
    _setting("recent", 0, lambda count: f"recent={count}", 30, quiet=True),
    _setting("blocks", 1, lambda count: f"blocks={count}", 35, quiet=True),
    _setting("refresh", None, lambda count: f"refresh={count}", 40),
    _setting("per", "head", lambda per: f"per {per}", 45, quiet=True),
    _setting("drift", None, lambda drift: f"drift={drift:g}", 47),
)


def _add(
    name: str, settings: tuple[Setting, ...], decode: Callable[[dict[str, Any]], dict[str, Any]], **more: Any
) -> None:
    add(Registered(name, settings, lambda values, seed: None, decode=decode, **more))


# A token taken out of the prompt is no change of attention, so it is a decode setting: nobody reads it, nothing stands there.
_add("delete_positions", (POSITIONS,), lambda values: {"delete": list(values["positions"])})
# The noise of sampling, which no paired interval over one seed contains.
_add("other_seed", (Setting("seed", 1, whole(0), label="{}".format),), lambda values: {"seed": values["seed"]})
_add("cache", (Setting("kind", "dual", among(CACHES)),), lambda values: {"cache": values["kind"]})
_add("sparse_cache", SPARSE, _sparse, contradiction=_wrong)
