"""Where names of roles stand on a canvas: "user" between chat markers is part of the template, and a word elsewhere."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sinkscope.sinks.tokens import LONGEST_ROLE, ROLE_FOLLOWS, kinds_in_context

ROLE_KIND = "template"


def role_names(canvas: npt.NDArray[np.int64], vocabulary: Mapping[int, tuple[str, str]]) -> npt.NDArray[np.bool_]:
    """canvas [step, position] → whether the name of a role stands there, as `kinds_in_context` decides for a whole row.

    Only the few tokens behind a marker that begins a header are looked at.
    """
    found = np.zeros(canvas.shape, dtype=np.bool_)
    opens = [i for i, (text, kind) in vocabulary.items() if kind == ROLE_KIND and ROLE_FOLLOWS.search(text)]
    for step, start in np.argwhere(np.isin(canvas, opens)):
        ids = canvas[step, start : start + LONGEST_ROLE + 2].tolist()
        plain = [vocabulary.get(i, ("", "unknown"))[1] for i in ids]
        kinds = kinds_in_context(ids, vocabulary)
        found[step, start : start + len(ids)] |= [one != other for one, other in zip(kinds, plain, strict=True)]
    return found
