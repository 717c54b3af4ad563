"""Direction of attention or objective, which makes a model need sinks: `python -m lab.experiments.directions STUDY -o RUN`.

An autoregressive model and a diffusion model differ in two ways: in what a token sees, and in what is predicted. Two further
twins have one of each: a denoiser that reads causally (twin-causal-dream), and next tokens behind a prompt that is read in both
directions (twin-prefix-llama). Both are families that only the laboratory knows; this makes them known, and runs the study.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import sinkscope as sk
from lab.directions import make_known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="a study file whose models are adapters of these families")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder of the run")
    given = parser.parse_args()
    make_known()
    sk.run(sk.Study.load(given.study), out=given.out, workers=1)  # in this process, which knows the families


if __name__ == "__main__":
    main()
