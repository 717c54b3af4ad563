"""Conditions: what is changed while a model answers, as plain data, as a label, and as the intervention itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InterventionError, RuleError
from sinkscope.fields import shown
from sinkscope.interventions.settings import INTERVENTIONS, REQUIRED, Registered, Setting, SettingError
from sinkscope.io import bounded_yaml

if TYPE_CHECKING:
    from sinkscope.interventions.base import Intervention

ALWAYS = ("k", "rank", "rows")  # fields that every condition has in results, whether or not its intervention takes them
STRENGTHS = ("k", "radius", "keep", "to", "by")  # how much is done; what differs in nothing else is one series
MODELS = ("all", "causal", "diffusion")


def names() -> tuple[str, ...]:
    """What study files may call a condition."""
    found = set(INTERVENTIONS) - {"none", "noop"}
    return ("none", "noop", *sorted(found))


@dataclass(frozen=True, init=False)
class Condition:
    """The name of an intervention in study files, and its settings; settings left out are the intervention's own defaults."""

    name: str
    settings: tuple[tuple[str, Any], ...]

    def __init__(
        self, name: str, k: int = 0, rank: str | None = None, rows: str | None = None, match: str | None = None, **more: Any
    ) -> None:  # fmt: skip
        words = {"k": k or None, "rank": rank, "rows": rows, "match": match, **more}
        given = {word: value for word, value in words.items() if value is not None}
        settings = _entry(name, given).settings
        order = [one.name for one in settings]
        if strange := [word for word in given if word not in order]:
            raise InterventionError(
                f"The condition {name} takes {', '.join(order) or 'no settings'}, not {strange[0]}."
            )
        found = [(one, one.freeze(given[one.name])) for one in settings if one.name in given]
        kept = tuple((one.name, value) for one, value in found if not (one.quiet and value == one.default))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "settings", kept)

    def get(self, setting: str, default: Any = None) -> Any:
        return dict(self.settings).get(setting, default)

    @property
    def k(self) -> int:
        return int(self.get("k", 0))

    def __getattr__(self, name: str) -> Any:
        """A setting by its name; None where this condition leaves it out, an error where no intervention has it."""
        if name.startswith("_") or all(name not in entry for entry in INTERVENTIONS.values()):
            raise AttributeError(f"a condition has no setting {name!r}")
        return self.get(name)

    @property
    def label(self) -> str:
        """Name and settings in a few words, the same for every K only in its number."""
        entry = self._entry
        words = [(0, self.name.replace("_", " "))]
        if entry.label is not None:
            words.append((1, entry.label(dict(self.settings))))
        for name, value in self.settings:
            if entry.label is None or name == "steps":  # which every intervention has, and no label of its own says
                words.append((entry.setting(name).place, entry.setting(name).label(value)))
        return " ".join(word for _, word in sorted(words, key=lambda pair: pair[0]) if word)

    @property
    def key(self) -> str:
        """A name for files: letters, digits, dots and hyphens."""
        return "".join(sign if sign.isalnum() or sign in "._" else "-" for sign in self.label.replace("K=", "k"))

    @property
    def must_take_effect(self) -> bool:
        """Whether masked keys must receive exactly nothing."""
        return self._entry.masks and not self.get("keep_self")

    @property
    def decode(self) -> dict[str, Any]:
        """Words that this condition puts over the decode settings, as plain data; none for what changes attention."""
        return {} if self._entry.decode is None else self._entry.decode(self._built())

    def series(self) -> Condition:
        """The condition without its K: tests over K are corrected together."""
        strengths = {name for name, value in self.settings if name in STRENGTHS and not isinstance(value, str)}
        return Condition(self.name, **{name: value for name, value in self.settings if name not in strengths})

    def to_dict(self) -> dict[str, Any]:
        """name, k, rank and rows always; the other settings where they say something."""
        always = {"name": self.name, "k": self.k, "rank": self.rank, "rows": self.rows}
        return {**always, **{name: value for name, value in self._plain().items() if name not in ALWAYS}}

    def entry(self, models: str = MODELS[0]) -> dict[str, Any]:
        """The condition as an entry of a study file, for these kinds of models."""
        return {"name": self.name, **self._plain(), **({} if models == MODELS[0] else {"for": models})}

    @property
    def _entry(self) -> Registered:
        return _entry(self.name, dict(self.settings))

    def _plain(self) -> dict[str, Any]:
        entry = self._entry
        return {name: entry.setting(name).thaw(value) for name, value in self.settings}

    def _built(self) -> dict[str, Any]:
        entry = self._entry
        return {name: entry.setting(name).build(value) for name, value in self.settings}

    def intervention(self, seed: int) -> Intervention | None:
        """What to put into the model; None for none."""
        return known(self.name).make(self._built(), seed)


def _entry(name: str, given: Iterable[str]) -> Registered:
    """The intervention of that name; of one that is not installed here, what its condition gives away."""
    strange = (Setting(one, None, label=partial("{}={}".format, one)) for one in given)
    return INTERVENTIONS.get(name) or Registered(name, tuple(strange), lambda values, seed: None)


def known(name: Any) -> Registered:
    """The intervention of that name, or one sentence that says which there are."""
    found = INTERVENTIONS.get(name)
    if found is None:
        raise SettingError("name", f"must be one of {', '.join(names())}, not {shown(name)}")
    return found


def condition_from_dict(data: Mapping[str, Any]) -> Condition:
    """The condition that `to_dict` wrote; one whose intervention is not installed here can still be shown."""
    words = {name: value for name, value in data.items() if name != "name"}
    entry = INTERVENTIONS.get(data["name"])
    if entry is not None:
        words = {name: value for name, value in words.items() if name in entry}
    return Condition(data["name"], **words)


def read_entry(entry: Mapping[str, Any], most: int | None = None) -> list[Condition]:
    """The conditions of one entry of a study file, where every list is a sweep; a SettingError names the wrong field.

    most: no more are made.
    """
    given = dict(entry)
    if given.get("name") is None:
        raise SettingError("", f"needs the field 'name': one of {', '.join(names())}")
    found = known(given.pop("name"))
    swept: dict[str, list[Any]] = {}
    for setting in found.settings:
        if setting.name not in given:
            if setting.default is REQUIRED:
                raise SettingError("", f"needs the field {setting.name!r}: {setting.expected}")
            swept[setting.name] = [setting.default]
            continue
        value = given.pop(setting.name)
        values = value if isinstance(value, list) and setting.sweeps else [value]
        for one in values:
            if not setting.allows(one):
                raise SettingError(setting.name, f"must be {setting.expected}, not {shown(one)}")
        if not values:
            raise SettingError(setting.name, f"must be {setting.expected}, not an empty list")
        swept[setting.name] = values
    if given:
        fields = ("name", "for", *(one.name for one in found.settings))
        raise SettingError(str(next(iter(given))), f"is not a field that is known here; known are {', '.join(fields)}")
    points = itertools.islice(itertools.product(*swept.values()), most)
    return [_made(found, dict(zip(swept, point, strict=True))) for point in points]


def parse_condition(text: str) -> Condition:
    """`mask_sinks:k=5,rank=as_run`: the name of an intervention as study files have it, and settings in YAML's flow style.

    Commas inside brackets, braces and quotes belong to the value: `mask_positions:positions=[0,1]`.
    """
    name, _, rest = text.partition(":")
    # What stands behind the name is YAML's flow style with = in place of the colon.
    flow, count = re.subn(r"(^|,)\s*(\w+)\s*=", r"\1 \2: ", rest)
    settings = bounded_yaml.parse(f"{{{flow}}}", f"--condition {name}", InterventionError)[0]
    if not isinstance(settings, dict) or "name" in settings or len(settings) != count:
        raise InterventionError(f"Expected a condition as NAME:setting=value,setting=value, got {text!r:.80}.")
    try:
        found = read_entry({"name": name.strip(), **settings})
    except InterventionError as error:
        field = getattr(error, "field", "")
        raise InterventionError(f"--condition {text:.80}: {field or 'it'} {str(error).rstrip('.')}.") from None
    if len(found) != 1:
        raise InterventionError(
            f"Expected one condition, got a sweep of {len(found)} in {text!r:.80}; repeat --condition."
        )
    return found[0]


def _made(entry: Registered, values: dict[str, Any]) -> Condition:
    frozen: dict[str, Any] = {}
    for name, value in values.items():
        try:
            setting = entry.setting(name)
            frozen[name] = value if value is None else setting.freeze(setting.read(value))
        except (RuleError, TypeError) as error:
            raise SettingError(name, f"is no sink rule: {str(error).rstrip('.')}") from None
    if wrong := entry.contradiction(frozen):
        raise SettingError(*wrong)
    condition = Condition(entry.name, **frozen)
    try:
        condition.intervention(0)
    except InterventionError as error:  # settings that are right each, and wrong together
        raise SettingError("", f"is wrong: {str(error).rstrip('.')}") from None
    return condition
