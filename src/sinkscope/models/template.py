"""A chat template is a program from elsewhere: it runs in a child process, bounded in time, memory and length.

jinja's sandbox bounds what a template may touch, not how long it runs: two loops inside each other, `10 ** 10 ** 10` or
`"x" * 10 ** 10` are legal. Only a process of its own can be ended in the middle of such a line.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from sinkscope.errors import CheckpointError
from sinkscope.io.reading import MB, reason, short
from sinkscope.models.zoo import FOLDER

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, str]]
SECONDS = 2  # of the processor; published templates take milliseconds
PATIENCE = 4.0  # seconds by the clock, for a machine that is busy with other things
MEMORY = 300 * MB  # beyond what this process has
LONGEST = MB  # characters of a chat beyond four times its messages

# A child has the locks of its parent as they stand: none of ours may be in the middle of rendering at that moment.
_forking = threading.Lock()


def rendered(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> str:
    """The messages as the model's own prompt, up to and with the header of its answer; or one sentence."""
    import transformers.utils.chat_template_utils  # noqa: F401  here once, not in every child

    if getattr(tokenizer, "chat_template", None) in _ours():
        return _applied(tokenizer, messages)
    most = LONGEST + 4 * sum(len(str(one.get("content", ""))) for one in messages)
    with _forking:
        source, target = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(source)
            _render(tokenizer, messages, target, most)
    os.close(target)
    try:
        with os.fdopen(source, "rb") as pipe:
            data = pipe.read()
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        said: dict[str, str] = json.loads(data)
    except ValueError:
        said = {"error": f"it took more than {SECONDS} seconds or {MEMORY // MB} MB"}
    if "error" in said:
        where = short(str(getattr(tokenizer, "name_or_path", "") or "this tokenizer"))
        raise CheckpointError(
            f"The chat template of {where} cannot be used ({said['error']}); pass chat=False or ids, or replace it."
        )
    return said["text"]


@cache
def _ours() -> frozenset[str]:
    """The templates inside the package, trusted as its code is: a study renders thousands of prompts with them."""
    written = {path.read_text(encoding="utf-8") for path in FOLDER.glob("*/chat_template.jinja")}
    for path in FOLDER.glob("*/tokenizer_config.json"):
        written.add(str(json.loads(path.read_text(encoding="utf-8")).get("chat_template")))
    return frozenset(written)


def _applied(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))  # type: ignore[arg-type]


def _render(tokenizer: PreTrainedTokenizerBase, messages: Messages, target: int, most: int) -> NoReturn:
    """In the child: write one JSON object into the pipe and be gone, whatever happens."""
    try:
        gc.disable()  # what the parent left to be collected is the parent's: files would be removed twice
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)  # its end
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        _limit()
        try:
            text = _applied(tokenizer, messages)
            said = {"text": text} if len(text) <= most else {"error": f"it wrote {len(text):,} characters"}
        except Exception as error:
            said = {"error": reason(error)}
        data = json.dumps(said).encode()
        while data:
            data = data[os.write(target, data) :]
    finally:
        os._exit(0)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # no /proc: time alone is bounded
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
