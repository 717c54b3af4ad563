"""A name becomes a folder: in the zoo, on disk, or in the Hub's cache; a Hub that falls silent is given up in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkscope.errors import CheckpointError
from sinkscope.io.reading import short
from sinkscope.models import zoo

TOKENIZER = ["*.json", "*.jinja", "*.txt", "*.model"]
PATTERNS = [*TOKENIZER, "*.safetensors"]


def seconds() -> float:
    """Without an answer, after which the Hub is given up: huggingface_hub's own HF_HUB_ETAG_TIMEOUT, 10 if not set."""
    from huggingface_hub import constants

    return float(constants.HF_HUB_ETAG_TIMEOUT)


def find_folder(
    asked: str, revision: str | None = None, token: str | bool | None = None, patterns: list[str] = PATTERNS
) -> Path:
    """The folder or GGUF file of a zoo name or on disk, else a snapshot of the Hub id, which may be written name@revision.

    patterns: what is fetched from the Hub.
    """
    known = zoo.find(asked)
    path = known or Path(asked).expanduser()
    if revision is not None and path.exists():
        raise CheckpointError(
            f"{asked} is on this machine, so that revision={revision!r} would have no effect; leave it out."
        )
    if known is not None:
        return known
    if path.suffix == ".gguf" and path.is_file():
        return path
    if path.is_dir():
        packed = sorted(path.glob("*.gguf"))
        return packed[0] if len(packed) == 1 and not (path / "config.json").is_file() else path
    if path.exists():
        raise CheckpointError(f"Expected a checkpoint folder, got the file {asked}; name the folder that holds it.")
    hub_id, at, written = asked.partition("@")
    parts = hub_id.split("/")
    if len(parts) != 2 or not all(parts) or parts[0] in (".", "..", "~"):
        raise CheckpointError(
            f"Expected a zoo name ({', '.join(zoo.names())}), a folder or a Hub id such as GSAI-ML/LLaDA-8B-Instruct, "
            f"got {short(repr(asked))}, which is none of them."
        )
    if at and (not written or revision not in (None, written)):
        raise CheckpointError(f"Expected one revision of {hub_id}, got {short(repr(asked))} and revision={revision!r}.")
    return snapshot(asked, patterns, revision, token)


def hub_commit(folder: Path) -> str | None:
    """The commit of a snapshot in the Hub's cache; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--") else None


def snapshot(
    hub_id: str, patterns: list[str] = PATTERNS, revision: str | None = None, token: str | bool | None = None
) -> Path:
    """The files of a repository that are safe to open, fetched unless they are there; hub_id may be written name@revision."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    hub_id, _, written = hub_id.partition("@")
    revision = revision or written or None
    try:
        with answering():
            found = snapshot_download(
                hub_id, allow_patterns=patterns, etag_timeout=seconds(), revision=revision, token=token
            )
        return Path(found)
    except (LocalEntryNotFoundError, OSError, HfHubHTTPError, HFValidationError) as error:
        waited = f"the Hub did not answer within {seconds():.0f} seconds or refused"
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else waited
        raise CheckpointError(
            f"{hub_id if revision is None else f'{hub_id}@{revision}'} is not a folder here, not in the Hub cache "
            f"{constants.HF_HUB_CACHE}, and {offline} ({type(error).__name__}); unset HF_HUB_OFFLINE and connect, set HF_HOME "
            "to a cache that has it, or name a folder."
        ) from None


@contextmanager
def answering() -> Iterator[None]:
    """Give up a Hub that says nothing: huggingface_hub lists a repository without any limit, and asks again five times."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils._http import get_session

    session: Any = get_session()
    level = logging.get_verbosity()
    logging.set_verbosity(40)  # every retry would be told, and the end of it is told by us
    hooks: dict[str, list[Any]] = getattr(session, "event_hooks", {})  # requests, in older versions, has none
    life = _Life()
    hooks.setdefault("request", []).append(life.asked)
    hooks.setdefault("response", []).append(life.answered)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        hooks["request"].remove(life.asked)
        hooks["response"].remove(life.answered)


class _Life:
    """When an answer last began, and what was asked: a file that came in part is asked for from another byte on."""

    def __init__(self) -> None:
        self.last, self.before = time.monotonic(), set[tuple[str, str, str | None]]()

    def answered(self, _: Any) -> None:
        self.last = time.monotonic()

    def asked(self, request: Any) -> None:
        """Before every request, and so before every retry; some are made with timeout=None, past the session's own."""
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), seconds())
        wanted = (request.method, str(request.url), request.headers.get("range"))
        if wanted in self.before and time.monotonic() - self.last >= seconds():
            raise TimeoutError("the Hub fell silent")
        self.before.add(wanted)
