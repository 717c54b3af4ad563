"""At which position a model's strong sinks stand: `python -m lab.experiments.sink_places smol-dream -n 3`."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import sinkscope as sk
from lab.directions import make_known
from sinkscope.tasks import problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("-n", type=int, default=3, help="problems per task")
    told = parser.parse_args()
    make_known()
    model = sk.load(told.model, dtype="bfloat16")
    words: dict[str, Any] = {} if model.causal else {"stop": "eos"}
    for task in ("arithmetic", "programs"):
        places: Counter[int] = Counter()
        for problem in problems(task, n=told.n, split="test", seed=0):
            traced = sk.trace(model, problem.prompt, None, **words)
            places.update(traced.sinks(sk.HeadShare(0.3))["position"].to_list())
        most = ", ".join(f"{100 * count / places.total():.1f} % at {place}" for place, count in places.most_common(3))
        print(f"{told.model}, {task}, {told.n} problems: {places.total()} strong sinks (step, layer, head); {most}")


if __name__ == "__main__":
    main()
