"""A driver that knows nothing of the template: it runs its study with two local workers, in shards and on Ray."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["RAY_raylet_start_wait_time_s"] = "180"  # noqa: SIM112  read when ray is imported; a busy machine is slow

import sinkscope as sk
from sinkscope.study.shards import Shard, merge, run_shard


def main(plan: str, out: Path, engines: list[str]) -> None:
    study = sk.Study.load(plan)
    if "local" in engines:
        sk.run(study, out / "local", workers=2)
    if "shards" in engines:
        parts = [run_shard(study, Shard(index, 2), out / f"part-{index}", workers=1) for index in (1, 2)]
        merge(parts, out / "merged")
    if "ray" in engines:
        sk.run(study, out / "ray", sk.Ray(workers=1))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
