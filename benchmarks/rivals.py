"""One task, four ways: trace a decode, count its sinks, and decode again with the top key of every head masked.

    python benchmarks/rivals.py             # prints the table
    python benchmarks/rivals.py --write     # … and writes lab/results/rivals.md

sinkscope, TransformerLens, nnsight, and hooks written by hand on transformers. The checkpoint is a random LLaDA of 98 M
parameters, written with `model.save`. TransformerLens and nnsight are installed into a temporary environment that shares
torch and transformers with this one. Every way runs in a process of its own, on one thread; the processes take turns, and
all must write the same tokens and count the same sinks. Time is processor time over that of the same two decodes with
SDPA, untouched. Memory is the highest resident size above the resident size before the task (Linux only).
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attention import MASK, extra_memory, machine, random_module

RESULTS = Path(__file__).parents[1] / "lab" / "results" / "rivals.md"
LENGTH, STEPS = 32, 4
SHARPER = 30.0
LENGTHS = [256, 1024]  # of prompt and answer together
Task = Callable[[Tensor], "Found"]
Found = tuple[Tensor, int, Tensor]  # tokens, number of sinks by Eq. 3 over all steps, tokens with the top keys masked


# ---- the four ways: each function is all that a user writes


def with_sinkscope(folder: str) -> Task:
    import sinkscope as sk

    model = sk.load(folder)

    def task(ids: Tensor) -> Found:
        settings = sk.Decode.llada(length=LENGTH, block=LENGTH, steps=STEPS)
        trace = sk.trace(model, ids[0], settings)
        with sk.intervene(model, sk.MaskSinks(k=1, rank="as_run")):
            masked = sk.decode(model, ids, settings).tokens
        return trace.canvas[-1:], trace.sinks(epsilon=3).height, masked

    return task


def with_transformerlens(folder: str) -> Task:
    from transformer_lens.model_bridge import TransformerBridge

    bridge = TransformerBridge.boot_transformers(folder, device="cpu", dtype=torch.float32)
    layers = range(bridge.cfg.n_layers)

    def task(ids: Tensor) -> Found:
        received: dict[int, Tensor] = {}
        steps: list[Tensor] = []
        is_masking = False

        def edit_scores(scores: Tensor, hook: Any) -> Tensor:
            top = last.get(hook.layer()) if is_masking else None
            return scores if top is None else scores.masked_fill(top[:, :, None], -torch.inf)

        def keep_pattern(pattern: Tensor, hook: Any) -> None:
            received[hook.layer()] = pattern[0].sum(1)

        hooks = [(f"blocks.{layer}.attn.hook_attn_scores", edit_scores) for layer in layers]
        hooks += [(f"blocks.{layer}.attn.hook_pattern", keep_pattern) for layer in layers]

        def decode() -> Tensor:
            canvas = torch.cat([ids, torch.full((1, LENGTH), MASK)], 1)
            last.clear()
            for _ in range(STEPS):
                sees_all = torch.zeros(1, 1, canvas.shape[1], canvas.shape[1])  # else its attention is causal
                with bridge.hooks(fwd_hooks=hooks):
                    logits = bridge.original_model(canvas, attention_mask=sees_all, use_cache=False).logits
                sums = torch.stack([received[layer] for layer in layers])
                steps.append(sums)
                for layer in layers:
                    best = sums[layer].argmax(-1, keepdim=True)
                    last[layer] = torch.zeros_like(sums[layer], dtype=torch.bool).scatter(-1, best, True)[None]
                sure, token = logits.double().softmax(-1).max(-1)
                sure = sure.masked_fill(canvas != MASK, -torch.inf)
                chosen = sure.topk(LENGTH // STEPS).indices
                canvas = canvas.scatter(1, chosen, token.gather(1, chosen))
            return canvas

        last: dict[int, Tensor] = {}
        tokens = decode()
        sums = torch.stack(steps)
        others = (sums.sum(-1, keepdim=True) - sums) / (sums.shape[-1] - 1)
        is_masking = True
        return tokens, int((sums > others + 3).sum()), decode()

    return task


def with_nnsight(folder: str) -> Task:
    from nnsight import NNsight
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    model, layers = NNsight(module), range(module.config.num_hidden_layers)

    def task(ids: Tensor) -> Found:
        heads, steps = module.config.num_attention_heads, []

        def decode(is_masking: bool) -> Tensor:
            canvas = torch.cat([ids, torch.full((1, LENGTH), MASK)], 1)
            width = canvas.shape[1]
            hidden: list[Tensor | None] = [None for _ in layers]
            for _ in range(STEPS):
                received = []
                with torch.no_grad(), model.trace(canvas, is_causal=False, use_cache=False):
                    for layer in layers:
                        attention = model.model.layers[layer].self_attn
                        if is_masking and hidden[layer] is not None:
                            arguments, words = attention.inputs
                            attention.inputs = arguments, {**words, "attention_mask": hidden[layer]}
                        received.append(attention.output[1][0].sum(1).save())
                    logits = model.lm_head.output.save()
                sums = torch.stack(list(received))
                steps.append(sums)
                for layer in layers:
                    top = torch.zeros(heads, width).scatter(-1, sums[layer].argmax(-1, keepdim=True), -torch.inf)
                    hidden[layer] = top[None, :, None].expand(1, heads, width, width)
                sure, token = logits.double().softmax(-1).max(-1)
                sure = sure.masked_fill(canvas != MASK, -torch.inf)
                chosen = sure.topk(LENGTH // STEPS).indices
                canvas = canvas.scatter(1, chosen, token.gather(1, chosen))
            return canvas

        tokens = decode(is_masking=False)
        sums = torch.stack(steps)
        others = (sums.sum(-1, keepdim=True) - sums) / (sums.shape[-1] - 1)
        return tokens, int((sums > others + 3).sum()), decode(is_masking=True)

    return task


def with_hooks(folder: str) -> Task:
    from transformers import AttentionInterface, AutoModelForCausalLM

    received: dict[int, Tensor] = {}
    last: dict[int, Tensor] = {}
    is_masking = False

    def attend(part: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any) -> Any:
        layer = part.layer_idx
        scores = query @ key.mT * scaling
        if is_masking and layer in last:
            scores = scores.masked_fill(last[layer][:, :, None], -torch.inf)
        pattern = scores.softmax(-1)
        received[layer] = pattern[0].sum(1)
        return (pattern @ value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("summed", attend)
    module = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="summed").eval()
    layers = range(module.config.num_hidden_layers)

    def task(ids: Tensor) -> Found:
        nonlocal is_masking
        is_masking, steps = False, []

        def decode() -> Tensor:
            canvas = torch.cat([ids, torch.full((1, LENGTH), MASK)], 1)
            last.clear()
            for _ in range(STEPS):
                with torch.no_grad():
                    logits = module(canvas, is_causal=False, use_cache=False).logits
                sums = torch.stack([received[layer] for layer in layers])
                steps.append(sums)
                for layer in layers:
                    best = sums[layer].argmax(-1, keepdim=True)
                    last[layer] = torch.zeros_like(sums[layer], dtype=torch.bool).scatter(-1, best, True)[None]
                sure, token = logits.double().softmax(-1).max(-1)
                sure = sure.masked_fill(canvas != MASK, -torch.inf)
                chosen = sure.topk(LENGTH // STEPS).indices
                canvas = canvas.scatter(1, chosen, token.gather(1, chosen))
            return canvas

        tokens = decode()
        sums = torch.stack(steps)
        others = (sums.sum(-1, keepdim=True) - sums) / (sums.shape[-1] - 1)
        is_masking = True
        return tokens, int((sums > others + 3).sum()), decode()

    return task


def untouched(folder: str) -> Task:
    """The floor: the same two decodes, with nothing looked at."""
    import sinkscope as sk

    model = sk.load(folder)

    def task(ids: Tensor) -> Found:
        settings = sk.Decode.llada(length=LENGTH, block=LENGTH, steps=STEPS)
        tokens = [sk.decode(model, ids, settings, history=False).tokens for _ in range(2)]
        return tokens[0], 0, tokens[1]

    return task


WAYS: dict[str, Callable[[str], Task]] = {
    "untouched": untouched,
    "sinkscope": with_sinkscope,
    "hooks by hand": with_hooks,
    "nnsight": with_nnsight,
    "TransformerLens": with_transformerlens,
}


# ---- measuring


def count_lines(way: Callable[..., Task]) -> int:
    """Lines of code of a way, without blank lines and its first."""
    return sum(bool(line.strip()) for line in inspect.getsource(way).splitlines()[1:])


def prompt_of(length: int) -> Tensor:
    return torch.randint(2, MASK, (1, length - LENGTH), generator=torch.Generator().manual_seed(1))


def serve(way: str, folder: str, length: int) -> None:
    """Do the task once, say what came out and how much memory it took; then once more for every line that comes in."""
    ids, run = prompt_of(length), WAYS[way](folder)
    with torch.no_grad():
        done: list[Found] = []
        taken = extra_memory(lambda: done.append(run(ids)))
        tokens, sinks, masked = done[0]
        answers = [one[0, -LENGTH:].tolist() for one in (tokens, masked)]
        print(json.dumps({"bytes": taken, "sinks": sinks, "answers": answers}), flush=True)
        for _ in sys.stdin:
            started = time.process_time()
            run(ids)
            print(json.dumps(time.process_time() - started), flush=True)


def sharpened(module: Any) -> Any:
    """Attention of random weights is almost even; with larger queries some keys are sinks."""
    for layer in module.model.layers:
        layer.self_attn.q_proj.weight.data *= SHARPER
    return module


def compare(pythons: dict[str, str], folder: str, length: int, repeats: int) -> dict[str, tuple[float, int, int]]:
    """Way → median seconds, extra bytes, sinks. All must write the same tokens and find the same sinks."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    there = {
        way: subprocess.Popen(
            [python, __file__, "--serve", way, "--folder", folder, "--length", str(length)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for way, python in pythons.items()
    }  # fmt: skip

    def answer(way: str) -> Any:
        output = there[way].stdout
        assert output is not None
        for line in output:
            if line.startswith(("{", "0.", *map(str, range(1, 10)))):
                return json.loads(line)
        raise SystemExit(f"{way} ended without an answer")

    def ask(way: str) -> float:
        given = there[way].stdin
        assert given is not None
        given.write("go\n")
        given.flush()
        return float(answer(way))

    first = {way: answer(way) for way in there}
    for way, found in first.items():
        if way != "untouched" and (found["answers"], found["sinks"]) != (
            first["sinkscope"]["answers"],
            first["sinkscope"]["sinks"],
        ):
            raise SystemExit(
                f"{way} found {found['sinks']} sinks or other tokens than sinkscope ({first['sinkscope']['sinks']} sinks)"
            )
    seconds: dict[str, list[float]] = {way: [] for way in there}
    for _ in range(repeats):
        for way in there:
            seconds[way].append(ask(way))
    for process in there.values():
        process.communicate()
    return {way: (statistics.median(seconds[way]), first[way]["bytes"], first[way]["sinks"]) for way in there}


def rivals_python(folder: str) -> str:
    """An environment of its own with TransformerLens and nnsight, which finds torch and transformers where they are here."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(Path(folder) / "bin" / "python")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shared = Path(folder) / "lib" / version / "site-packages" / "shared.pth"
    shared.write_text(sysconfig.get_path("purelib") + "\n")
    words = ["-m", "pip", "install", "--quiet", "--no-input", "transformer_lens", "nnsight"]
    subprocess.run([python, *words], check=True)
    return python


def page(repeats: int, lengths: list[int], python: str) -> str:
    import sinkscope as sk

    own = {way: python if way in ("nnsight", "TransformerLens") else sys.executable for way in WAYS}
    lines = ["| S | way | lines | time against untouched | memory, MB | sinks found |", "|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = sk.load("tiny-llada").tokenizer  # which TransformerLens needs, though no text is read
        model = sk.wrap(sharpened(random_module()), tokenizer, family="llada", mask_id=MASK)
        model.save(Path(folder) / "model")
        for length in lengths:
            found = compare(own, str(Path(folder) / "model"), length, repeats)
            floor = found["untouched"][0]
            for way, (seconds, taken, sinks) in found.items():
                written = "–" if way == "untouched" else str(count_lines(WAYS[way]))
                counted = "–" if way == "untouched" else str(sinks)
                lines.append(
                    f"| {length} | {way} | {written} | {seconds / floor:.2f} × | {taken / 1e6:.0f} | {counted} |"
                )
                print(lines[-1], flush=True)
    return "\n".join([
        "# One task by several libraries", "",
        f"`python benchmarks/rivals.py --repeats {repeats} --lengths {' '.join(map(str, lengths))} --write` on {machine()}.", "",
        "The task: trace a decode of a diffusion model, count its sinks (Eq. 3, ε = 3, over all steps, layers and heads), and",
        "decode again with the most attended key of every head masked, ranked by the step before. The model is a random LLaDA",
        f"of 98 M parameters in float32; {LENGTH} tokens in {STEPS} steps; S is prompt and answer together. All ways write the",
        "same tokens. Lines are those of the function in `benchmarks/rivals.py`, loading included. Time is processor time of the",
        "task, on one thread: medians of turns, against two decodes with SDPA and nothing else. Memory is above the model.", "",
        *lines, "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=LENGTHS, help="positions of prompt and answer together"
    )
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--python", help="an environment that has TransformerLens and nnsight; by default one is made")
    for name in ("--serve", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.folder, given.length)
        return
    with tempfile.TemporaryDirectory() as folder:
        text = page(given.repeats, given.lengths, given.python or rivals_python(folder))
    if given.write:
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
