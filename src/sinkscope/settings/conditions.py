"""Conditions of a study that change how a model decodes, not what its attention does: its cache, or a deleted token.

They stand beside `none` like interventions do, so that answers with and without a cache are compared problem by problem.
"""

from __future__ import annotations

from typing import Any, get_args

from sinkscope.errors import SinkscopeError
from sinkscope.interventions.positions import POSITIONS
from sinkscope.interventions.settings import Registered, Setting, add, among, number, whole
from sinkscope.settings.sparse import By, Per, SparseCache


def _sparse(values: dict[str, Any]) -> dict[str, Any]:
    return {"cache": SparseCache(**values).to_dict()}


def _wrong(values: dict[str, Any]) -> tuple[str, str] | None:
    try:
        _sparse({name: value for name, value in values.items() if value is not None})
    except SinkscopeError as error:
        return "", f"is wrong: {str(error).rstrip('.')}"
    return None


def _open(check: Any) -> Any:
    return lambda value: value is None or check(value)


KIND = Setting("kind", "dual", among(("prefix", "dual")), "prefix or dual")
BY = Setting("by", "received", among(get_args(By)), f"one of {', '.join(get_args(By))}", lambda v: f"by {v}", 10)
KEEP = Setting("keep", 0.25, number(0, 1), "a share from 0 to 1", lambda v: f"keep={v:g}", 20)
RECENT = Setting("recent", 0, whole(0), "a whole number of at least 0", lambda v: f"recent={v}", 30, quiet=True)
REFRESH = Setting(
    "refresh", None, _open(whole(1)), "a whole number of at least 1, or null", lambda v: f"refresh={v}", 40
)
BLOCKS = Setting(
    "blocks", 1, lambda value: value == "all" or whole(1)(value), "a whole number of at least 1, or all",
    lambda v: f"blocks={v}", 35, quiet=True,
)  # fmt: skip
PER = Setting("per", "head", among(get_args(Per)), "head or layer", lambda v: f"per {v}", 45, quiet=True)
DRIFT = Setting("drift", None, _open(number(0, 2)), "a number from 0 to 2, or null", lambda v: f"drift={v:g}", 47)

# A token taken out of the prompt is no change of attention, so it is a decode setting: nobody reads it, nothing stands there.
add(
    Registered(
        "delete_positions",
        (POSITIONS,),
        lambda values, seed: None,
        decode=lambda values: {"delete": list(values["positions"])},
    )
)
add(Registered("cache", (KIND,), lambda values, seed: None, decode=lambda values: {"cache": values["kind"]}))
add(
    Registered(
        "sparse_cache",
        (BY, KEEP, RECENT, BLOCKS, REFRESH, PER, DRIFT),
        lambda values, seed: None,
        contradiction=_wrong,
        decode=_sparse,
    )
)
