"""A driver that can be killed: runs the study that it reads from stdin on the cluster whose address it reads."""

from __future__ import annotations

import json
import sys


def main() -> None:
    import ray

    from sinkscope.study.engine import Ray
    from sinkscope.study.ray import Cluster
    from sinkscope.study.run import run
    from sinkscope.study.schema import Study

    asked = json.loads(sys.stdin.read())
    ray.init(address=asked["address"], _node_ip_address="127.0.0.2", log_to_driver=False, logging_level="error")
    engine = Cluster(Ray(workers=2))

    def tell(done: int, total: int) -> None:
        pids = [worker.pid for worker in engine.workers if worker.pid is not None]
        print(json.dumps({"done": done, "pids": pids}), flush=True)

    run(Study.from_dict(asked["study"]), asked["out"], engine, on_progress=tell)


if __name__ == "__main__":
    main()
