"""The candidate in one process, the tests in another, and the lines they exchange."""

from __future__ import annotations

import builtins
import json
import os
import signal
import sys
import types

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    from typing import Any, NoReturn

MESSAGE_BYTES = 4 << 20  # the longest answer that the judge reads from the candidate


def candidate(code: str, name: str, ask: int, answer: int) -> NoReturn:
    """Run the code, then answer calls until the judge hangs up."""
    asked, answered = os.fdopen(ask, "rb"), os.fdopen(answer, "wb", buffering=0)

    def tell(message: dict[str, Any]) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        answered.write(json.dumps(message).encode() + b"\n")

    def story(error: BaseException) -> dict[str, Any]:
        kind = "memory" if isinstance(error, MemoryError) else "exit" if isinstance(error, SystemExit) else "error"
        return {"raised": type(error).__name__, "text": str(error)[:500], "reason": kind}

    module = types.ModuleType(name)
    launcher, sys.modules[name] = sys.modules.get(name), module
    sys.argv[:] = [name]
    space = module.__dict__
    try:
        exec(compile(code, "<candidate>", "exec", dont_inherit=True), space)
        tell({"value": None})
    except BaseException as error:
        if not isinstance(error, (MemoryError, SystemExit)):
            sys.excepthook(type(error), error, error.__traceback__)
        tell(story(error))
        os._exit(1)
    for line in asked:
        request = json.loads(line)
        try:
            if "look" in request:
                thing = space.get(request["look"], space)
                if thing is space:
                    tell({"missing": True})
                elif callable(thing):
                    tell({"callable": True})
                else:
                    tell({"value": pack(thing)})
            else:
                values = unpack(request["arguments"])
                tell({"value": pack(space[request["call"]](*values[0], **values[1]))})
        except BaseException as error:
            tell(story(error))
    del launcher
    os._exit(0)


class GoneError(BaseException):
    """The candidate's process ended, or said what no honest process says."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(text)
        # The reason may be the candidate's own word: it may say how it failed, not that it did not.
        self.reason = reason if reason in ("memory", "exit", "timeout", "killed") else "error"


class Line:
    """The judge's end of the talk with the candidate's process."""

    def __init__(self, pid: int, ask: int, answer: int) -> None:
        self.pid, self.ask, self.answer = pid, ask, os.fdopen(answer, "rb")
        self.gone: GoneError | None = None  # kept: a bare `except:` in the tests must not make it forgotten

    def end(self, reason: str, text: str) -> GoneError:
        """What to raise when the candidate is gone, now and for every later call."""
        self.gone = self.gone or GoneError(reason, text)
        return self.gone

    def read(self) -> Any:
        if self.gone is not None:
            raise self.gone
        try:
            line = self.answer.readline(MESSAGE_BYTES)
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            if len(line) >= MESSAGE_BYTES:
                raise self.end("error", "the answer is too long")
            _, status = os.waitpid(self.pid, 0)
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            if number == signal.SIGXCPU:
                raise self.end("timeout", "the processor time ran out")
            raise self.end("killed" if number else "exit", f"signal {number}" if number else "it ended by itself")
        return json.loads(line)

    def send(self, request: dict[str, Any]) -> Any:
        data = json.dumps(request).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self.ask, data) :]
        except OSError:
            pass  # the read that follows finds out how it ended
        return self.read()

    def proxy(self, name: str) -> Any:
        def function(*arguments: Any, **words: Any) -> Any:
            reply = self.send({"call": name, "arguments": pack((list(arguments), words))})
            if "raised" not in reply:
                return unpack(reply["value"])
            if reply["reason"] in ("memory", "exit"):
                raise self.end(str(reply["reason"]), str(reply["text"]))
            kind = getattr(builtins, str(reply["raised"]), None)
            # StopIteration would end a `map` in the tests early, and so pass them.
            honest = isinstance(kind, type) and issubclass(kind, Exception) and kind is not StopIteration
            raise kind(reply["text"]) if honest and kind else RuntimeError(f"{reply['raised']}: {reply['text']}")

        function.__name__ = name
        return function


def judge(job: dict[str, Any], line: Line) -> dict[str, Any]:
    """Run the tests against the candidate's functions; the reason is "ok" only when the last line was reached."""
    try:
        reply = line.read()
        if "raised" in reply:
            raise GoneError(str(reply["reason"]), f"{reply['raised']}: {reply['text']}")
        if job["tests"] is not None:
            run_tests(job, line)
        if line.gone is not None:
            raise line.gone
        reason, text = "ok", ""
    except GoneError as gone:
        reason, text = gone.reason, str(gone)
    except AssertionError as error:
        reason, text = "failed", f"AssertionError: {error}"
    except BaseException as error:
        reason, text = "memory" if isinstance(error, MemoryError) else "error", repr(error)
    return {"reason": reason, "text": text[:500]}


def run_tests(job: dict[str, Any], line: Line) -> None:
    """Bind the names that the tests want from the candidate, then run them to their end."""
    space: dict[str, Any] = {"__name__": "tests"}
    exec(compile(job["setup"], "<setup>", "exec", dont_inherit=True), space)
    for name in job["names"]:
        reply = line.send({"look": name})
        if "callable" in reply:
            space[name] = line.proxy(name)
        elif "value" in reply:
            space[name] = unpack(reply["value"])
        else:
            raise GoneError("error", f"NameError: {name} is not defined, or is no plain data")
    exec(compile(job["tests"], "<tests>", "exec", dont_inherit=True), space)


# ---- plain data: the only thing that crosses between the candidate and the judge ----


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
