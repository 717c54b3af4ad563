"""Run a study again and again, each time killed at the moment that is asked for; then once to its end.

Called as a script: it loads everything once and forks, so that each of the many runs begins at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def main() -> None:
    import torch

    torch.set_num_threads(1)
    from sinkscope.study.run import run
    from sinkscope.study.schema import Study

    asked = json.loads(sys.stdin.read())
    study = Study.from_dict(asked["study"])
    ended = []
    for delay in [*asked["delays"], None]:
        child = os.fork()
        if child == 0:
            run(study, asked["out"], workers=1)
            os._exit(0)
        if delay is not None:
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        units = os.path.join(asked["out"], "units")
        done = sum(name.endswith(".json") for name in os.listdir(units)) if os.path.isdir(units) else 0
        ended.append({"code": os.waitstatus_to_exitcode(status), "units": done})
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
