"""Plain data: the only thing that crosses between the candidate and the judge."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    from typing import Any


def pack(value: Any) -> Any:  # noqa: PLR0912  one branch a kind of data
    """Plain data as JSON; subclasses become their base, so that no method of the candidate's crosses."""
    if value is None or isinstance(value, bool):
        packed: Any = value
    elif isinstance(value, int):
        number = int.__add__(value, 0)
        packed = number if -(1 << 53) < number < 1 << 53 else {"int": hex(number)}
    elif isinstance(value, float):
        packed = {"float": float.hex(value)}
    elif isinstance(value, str):
        packed = str.__str__(value)
    elif isinstance(value, list):
        packed = [pack(item) for item in list.__iter__(value)]
    elif isinstance(value, dict):
        packed = {"dict": [[pack(key), pack(dict.__getitem__(value, key))] for key in dict.__iter__(value)]}
    elif isinstance(value, tuple):
        packed = {"tuple": [pack(item) for item in tuple.__iter__(value)]}
    elif isinstance(value, (set, frozenset)):
        packed = {"set" if isinstance(value, set) else "frozenset": [pack(item) for item in value]}
    elif isinstance(value, (bytes, bytearray)):
        packed = {"bytes" if isinstance(value, bytes) else "bytearray": bytes(value).hex()}
    elif isinstance(value, complex):
        packed = {"complex": [float.hex(value.real), float.hex(value.imag)]}
    elif isinstance(value, range):
        packed = {"range": [value.start, value.stop, value.step]}
    elif hasattr(value, "__next__"):  # an iterator stays one: it equals no list
        packed = {"iter": [pack(item) for _, item in zip(range(100_000), value, strict=False)]}
    else:
        raise TypeError(f"only plain data can be handed to the tests, not {type(value).__name__}")
    return packed


def unpack(value: Any) -> Any:
    """The plain data that `pack` was given."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return MAKERS[kind](content)


MAKERS: dict[str, Any] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": lambda pair: complex(*map(float.fromhex, pair)),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "range": lambda bounds: range(*bounds),
    "dict": lambda pairs: {unpack(key): unpack(item) for key, item in pairs},
    "tuple": lambda items: tuple(map(unpack, items)),
    "set": lambda items: set(map(unpack, items)),
    "frozenset": lambda items: frozenset(map(unpack, items)),
    "iter": lambda items: iter([unpack(item) for item in items]),
}
