"""How large, how fast: the report of a big run, and `view` of a long one, in headless Chromium.

    python benchmarks/report.py [--json FILE] [--noise]

Report: 8 samples of 128 steps × 32 layers × 170 tokens with the head grid (32 × 32). View: one trace of 1024 steps × 1024
tokens. The numbers are made up: sinks that move, over attention that changes slowly from step to step; --noise changes
it at every step instead, which packs worst.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser, Page, sync_playwright

from sinkscope.decoding.settings import Decode
from sinkscope.report import write_traces
from sinkscope.report.view import Viewer
from sinkscope.tracing import Trace

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
FRAMES = """async () => {
  const app = window.sinkscope, times = [];
  app.set({step: 0});
  let last = performance.now();
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  await frame();
  for (let step = 1; step < app.sample.steps && times.length < 120; step++) {
    app.set({step});
    await frame();
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  return times;
}"""


def made(steps: int, layers: int, heads: int, prompt: int, length: int, seed: int, noise: bool, summary: bool) -> Trace:
    """A trace with moving sinks, made without a model; in summary form its heads are known by their top keys."""
    draw = torch.Generator().manual_seed(seed)
    positions = prompt + length
    done_at = torch.full((positions,), -1, dtype=torch.int32)
    done_at[prompt:] = (torch.arange(length) * steps // length).int()
    final = torch.randint(1, 400, (positions,), generator=draw)
    canvas = torch.stack([torch.where(done_at < step, final, 0) for step in range(steps + 1)])
    counts = [[int((done_at >= s).sum()), int(((done_at < s) & (done_at >= 0)).sum()), prompt] for s in range(steps)]
    queries = torch.tensor(counts, dtype=torch.int32)
    base = torch.randn(layers, 3, positions, generator=draw)
    change = torch.randn(steps, layers, 3, positions, generator=draw)
    if not noise:  # a slow walk: neighbouring steps share most of their attention
        change = 0.15 * change.cumsum(0) / torch.arange(1, steps + 1)[:, None, None, None].sqrt() * 3
    logits = base + change
    front = prompt + torch.arange(steps) * length // steps
    logits[torch.arange(steps), :, :, front] += torch.linspace(2, 6, layers)[None, :, None]
    logits[..., 0] += 3
    mean = logits.softmax(-1) * queries[:, None, :, None]  # [step, layer, group, key]
    common: dict[str, Any] = {
        "queries": queries, "canvas": canvas, "confidence": torch.full((steps, positions), 0.5), "committed_at": done_at,
        "blocks": torch.stack([front, front + 1], 1).int(), "prompt_length": prompt,
        "settings": Decode.llada(length=length, block=length, steps=steps), "model": {"name": "made-8b", "family": "llada"},
        "backend": "reference", "vocabulary": {i: (f"tok{i}", "mask" if i == 0 else "word") for i in range(400)},
        "mask_id": 0, "causal": False, "prompt": f"prompt {seed}", "text": "",
    }  # fmt: skip
    if not summary:
        spread = 0.5 + torch.rand(1, layers, heads, 1, 1, generator=draw)
        return Trace(received=(mean[:, :, None] * spread).half(), **common)
    top = mean.topk(16, dim=-1)
    keys = top.indices[:, :, None].expand(-1, -1, heads, -1, -1).int()
    scores = top.values[:, :, None] * (0.5 + torch.rand(steps, layers, heads, 1, 1, generator=draw))
    return Trace(received=None, layer_mean=mean.half(), top_keys=keys, top_scores=scores.half(), **common)


def spent(browser: Browser) -> float:
    """Seconds of CPU that the browser and all its processes have used: what a busy machine does not blur."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return float(sum(process["cpuTime"] for process in processes))


def opened(browser: Browser, address: str) -> tuple[Page, dict[str, float]]:
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.set_default_timeout(600_000)
    start, before = time.perf_counter(), spent(browser)
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    return page, {"open_seconds": time.perf_counter() - start, "open_cpu_seconds": spent(browser) - before}


def frames(browser: Browser, page: Page) -> dict[str, float]:
    """Steps a second when every frame shows another step; and the CPU, over all processes, that a frame costs."""
    page.wait_for_selector("html[data-settled]")
    before = spent(browser)
    times = page.evaluate(FRAMES)
    return {
        "frames_per_second": 1000 / statistics.mean(times),
        "cpu_ms_a_frame": 1000 * (spent(browser) - before) / len(times),
        "slowest_frame_ms": max(times),
        "frames": len(times),
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--json", type=Path)
    words.add_argument("--noise", action="store_true")
    asked = words.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "attention": "new at every step" if asked.noise else "slowly changing",
    }
    chromium = os.environ.get("SINKSCOPE_CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        traces = [made(128, 32, 32, 42, 128, seed, asked.noise, True) for seed in range(8)]
        start = time.perf_counter()
        path = write_traces(traces, Path(folder) / "report.html")
        found["report"] = {"write_seconds": time.perf_counter() - start, "megabytes": path.stat().st_size / 1e6}
        run = Path(folder) / "long"
        long = made(1024, 4, 4, 16, 1024, 0, asked.noise, False)
        file = long.save(run / "traces" / "long.safetensors")
        del traces, long
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS, headless=True)
        page, taken = opened(browser, f"{path.as_uri()}#tab=explorer")
        bits = page.evaluate("window.sinkscope.samples.map((sample) => sample.bits)")
        found["report"] |= {"samples": len(bits), "bits": bits[0], **taken, **frames(browser, page)}
        page.close()
        start, used = time.perf_counter(), time.process_time()
        with Viewer(run) as viewer:
            ready = {"server_seconds": time.perf_counter() - start}
            page, taken = opened(browser, viewer.address)
            ready["server_cpu_seconds"] = time.process_time() - used
            found["view"] = {"trace_megabytes": file.stat().st_size / 1e6, **ready, **taken, **frames(browser, page)}
            page.close()
        browser.close()
    text = json.dumps(found, indent=2)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
