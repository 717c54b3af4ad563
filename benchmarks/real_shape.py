"""A checkpoint with the real sizes of LLaDA-8B or Dream-7B and random weights: loaded, checked, traced and masked on a CPU.

    python benchmarks/real_shape.py FOLDER --shape llada --tokenizer FOLDER_WITH_TOKENIZER_FILES
    python benchmarks/real_shape.py FOLDER --shape dream --layers 2      # a try that takes a minute
    python benchmarks/real_shape.py FOLDER --only check                  # of a checkpoint that is there
    python benchmarks/real_shape.py FOLDER --only study                  # the study `paper` on it, cut to one problem

Writes the checkpoint (16 GB) unless it is there, then does in a process of its own what a user would, and prints the
time and the peak memory of each step. Stops itself when the machine runs short of memory,
and fails when the peak is more than 2 GB over the weights or attention does not add up. Not part of `make bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml

SHARD = 2 << 30  # bytes of weights in a file
SHORT = 1 << 30  # bytes of memory that must stay available
GB = 1e9

LLADA = {
    "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": 4096, "n_layers": 32, "n_heads": 32,
    "n_kv_heads": 32, "mlp_hidden_size": 12288, "mlp_ratio": 4, "embedding_size": 126464, "vocab_size": 126464,
    "max_sequence_length": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_full_precision": True,
    "weight_tying": False, "mask_token_id": 126336, "eos_token_id": 126081, "pad_token_id": 126081,
    "torch_dtype": "bfloat16",
}  # fmt: skip
DREAM = {
    "model_type": "Dream", "architectures": ["DreamModel"], "hidden_size": 3584, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False,
    "hidden_act": "silu", "mask_token_id": 151666, "eos_token_id": 151643, "pad_token_id": 151643,
    "bos_token_id": 151643, "torch_dtype": "bfloat16",
}  # fmt: skip
SHAPES = {"llada": (LLADA, "n_layers"), "dream": (DREAM, "num_hidden_layers")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="llada")
    parser.add_argument("--layers", type=int, help="fewer layers, for a try")
    parser.add_argument("--tokenizer", type=Path, help="folder with the real tokenizer's files")
    parser.add_argument("--only", choices=("use", "check", "study"), help="one of the parts")
    parser.add_argument("--minutes", type=float, default=10, help="after which the check is given up")
    parser.add_argument("--do", choices=DONE_APART, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.do:
        DONE_APART[asked.do](asked.folder)
        return
    if not (asked.folder / "config.json").is_file():
        started = time.perf_counter()
        size = write(asked.folder, asked.shape, asked.layers, asked.tokenizer)
        print(f"written: {size / GB:.2f} GB of weights in {time.perf_counter() - started:.0f} s", flush=True)
    for name in DONE_APART:
        if asked.only in (None, name):
            guarded([sys.executable, __file__, str(asked.folder), "--do", name])
    if asked.only not in (None, "check"):
        return
    check = "import sys; from sinkscope.cli import main; main(sys.argv[1:])"
    started = time.perf_counter()
    guarded([sys.executable, "-c", check, "check", str(asked.folder), "--dtype", "bfloat16"], 60 * asked.minutes)
    print(f"sinkscope check, with its own loading: {time.perf_counter() - started:.0f} s", flush=True)


def write(folder: Path, shape: str, layers: int | None, tokenizer: Path | None) -> int:
    """Shards of bfloat16 under the checkpoint's own names; returns bytes of weights."""
    from safetensors.torch import save_file

    config, name = SHAPES[shape]
    config = {**config, name: layers or config[name]}
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(tokenizer.iterdir()) if tokenizer else []:
        if path.name != "config.json":
            shutil.copy(path, folder / path.name)
    shards: list[dict[str, torch.Tensor]] = [{}]
    where: dict[str, int] = {}
    total = full = 0
    generator = torch.Generator().manual_seed(0)
    for key, size in keys(shape, config):
        value = torch.ones(size) if len(size) == 1 else torch.empty(size).normal_(0, 0.02, generator=generator)
        if full + value.numel() * 2 > SHARD and shards[-1]:
            save_file(shards[-1], folder / f"model-{len(shards):05d}.safetensors", {"format": "pt"})
            shards[-1] = {}
            shards.append({})
            full = 0
        shards[-1][key] = value.to(torch.bfloat16)
        where[key] = len(shards)
        full += value.numel() * 2
        total += value.numel() * 2
    save_file(shards[-1], folder / f"model-{len(shards):05d}.safetensors", {"format": "pt"})
    index = {key: f"model-{number:05d}.safetensors" for key, number in where.items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(config, indent=1))  # last: when it is there, all of it is
    return total


def keys(shape: str, config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every weight's name in the family's own files, with its size."""
    if shape == "llada":
        width, inner, rows = config["d_model"], config["mlp_hidden_size"], config["embedding_size"]
        yield "model.transformer.wte.weight", (rows, width)
        yield "model.transformer.ln_f.weight", (width,)
        yield "model.transformer.ff_out.weight", (rows, width)
        for layer in range(config["n_layers"]):
            start = f"model.transformer.blocks.{layer}."
            for part in ("q_proj", "k_proj", "v_proj", "attn_out"):
                yield f"{start}{part}.weight", (width, width)
            for part, size in (("ff_proj", (inner, width)), ("up_proj", (inner, width)), ("ff_out", (width, inner))):
                yield f"{start}{part}.weight", size
            for part in ("attn_norm", "ff_norm"):
                yield f"{start}{part}.weight", (width,)
        return
    width, inner, rows = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    narrow = width // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (rows, width)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (rows, width)
    for layer in range(config["num_hidden_layers"]):
        start = f"model.layers.{layer}."
        for part, out in (("q", width), ("k", narrow), ("v", narrow)):
            yield f"{start}self_attn.{part}_proj.weight", (out, width)
            yield f"{start}self_attn.{part}_proj.bias", (out,)
        yield f"{start}self_attn.o_proj.weight", (width, width)
        for part, size in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
            yield f"{start}mlp.{part}_proj.weight", size
        for part in ("input_layernorm", "post_attention_layernorm"):
            yield f"{start}{part}.weight", (width,)


def use(folder: Path) -> None:
    """What a user does: load, trace a few steps on a canvas of 64, mask one step."""
    import sinkscope as sk

    with measured("import torch and sinkscope"):
        sk.load  # noqa: B018
        import transformers  # noqa: F401
    peaks: list[int] = []
    with measured("load in bfloat16", peaks):
        model = sk.load(str(folder), dtype="bfloat16")
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.module.parameters())
    count = sum(parameter.numel() for parameter in model.module.parameters())
    most = weights + 2e9
    print(f"{count:,} parameters, {weights / GB:.2f} GB: at most {most / GB:.2f} GB are allowed", flush=True)
    ids = torch.arange(1000, 1032).unsqueeze(0) if model.tokenizer is None else model.encode("Tom has 12 apples and "
        "gives 5 of them to Ann, who had 3. How many apples does Ann have now?")[:, :32]  # fmt: skip
    length = 64 - ids.shape[1]
    words = {"length": length, "steps": 3, **({"block": length} if model.family.name == "llada" else {})}
    with measured("trace of 3 steps, canvas 64", peaks):
        made = sk.trace(model, ids, keep=sk.Keep(dtype=torch.float32), **words)
    queries = made.received.double().sum(dim=(-2, -1))  # [step, layer, head]
    off = float((queries - 64).abs().max())
    layers, heads = queries.shape[1:]
    print(f"received sums to 64 queries in {layers} layers of {heads} heads; the farthest is {off:.2g} off", flush=True)
    # The first step is as it was: it ranks the keys that the second one masks.
    with (
        measured("decode of 2 steps, the second masked, K = 5", peaks),
        sk.intervene(model, sk.MaskSinks(k=5)) as active,
    ):
        sk.decode(model, ids, made.settings.__class__.from_dict({**made.settings.to_dict(), "steps": 2}))
    took = active.effect
    print(f"masked keys received {took.leak:g}; {took.mass_share:.1%} of the attention was theirs", flush=True)
    if max(peaks) > most or off > 1e-3 or took.leak or not took.keys:
        sys.exit(f"expected a peak of at most {most / GB:.2f} GB, 64 queries in every head and masked keys at 0")


def study(folder: Path) -> None:
    """The study `paper` on this checkpoint: one problem, sinks masked or not, a canvas of 16 behind the prompt."""
    import tempfile

    import sinkscope as sk
    from sinkscope.report.writing import write

    plan = yaml.safe_load(sk.Study.load("paper").to_yaml())
    words = (
        {"length": 16, "block": 8}
        if "llada" in json.loads((folder / "config.json").read_text())["model_type"]
        else {"length": 16}
    )
    masked = [one for one in plan["conditions"] if one["name"] in ("none", "mask_sinks")]
    plan |= {
        "models": [str(folder)], "dtype": "bfloat16", "tasks": [{"name": "arithmetic", "problems": 1}], "chunk": 1,
        "conditions": masked, "decode": {**plan["decode"], **words},
        "trace": {**plan["trace"], "problems": 1, "models": [], "decode": {**plan["trace"]["decode"], **words, "steps": 4}},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as out, measured("the study paper, one problem"):
        results = sk.run(plan, out=f"{out}/run", workers=1).results
        page = write(Path(out) / "run")
        size = page.stat().st_size
    print(f"{len(results['cells'])} cells, {len(results['dynamics'])} rows of heads, a page of {size:,} bytes")
    for cell in results["cells"]:
        removed = "" if cell["mass_share"] is None else f", {cell['mass_share']:.1%} of the attention removed"
        print(f"{cell['condition']['name']}: {cell['correct']} of {cell['n']} right{removed}")


DONE_APART = {"use": use, "study": study}  # each in a process of its own


@contextmanager
def measured(what: str, peaks: list[int] | None = None) -> Iterator[None]:
    """Seconds and peak memory of a step; the peak is the kernel's own, set back before it."""
    Path("/proc/self/clear_refs").write_text("5")
    started = time.perf_counter()
    yield
    seconds = time.perf_counter() - started
    status = Path("/proc/self/status").read_text()
    now = {name: int(value) * 1024 for name, value in re.findall(r"(\w+):\s+(\d+) kB", status)}
    print(
        f"{what}: {seconds:.1f} s, peak {now['VmHWM'] / GB:.2f} GB, after it {now['VmRSS'] / GB:.2f} GB "
        f"({now['RssAnon'] / GB:.2f} own, {now['RssFile'] / GB:.2f} of files)",
        flush=True,
    )
    if peaks is not None:
        peaks.append(now["VmHWM"])


def guarded(command: list[str], seconds: float = 3600) -> None:
    """Run it, and kill it before the machine has no memory left, or when its time is over."""
    process = subprocess.Popen(command)
    done = threading.Event()
    end = time.monotonic() + seconds

    def watch() -> None:
        while not done.wait(0.2):
            if time.monotonic() > end:
                print(f"stopped: not done after {seconds:.0f} s", file=sys.stderr)
                os.kill(process.pid, signal.SIGKILL)
                return
            found = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
            if found and int(found[1]) * 1024 < SHORT:
                print("stopped: less than 1 GB of memory is left", file=sys.stderr)
                os.kill(process.pid, signal.SIGKILL)
                return

    threading.Thread(target=watch, daemon=True).start()
    code = process.wait()
    done.set()
    if code:
        sys.exit(f"{' '.join(command[-3:])} ended with {code}")


if __name__ == "__main__":
    main()
