"""A GPU for machines without one: tensors that say they are on cuda and compute on the CPU.

`PretendCuda()` is a context. Inside it tensors may be put on cuda:0, cuda:1, …; operations on two devices at once are
refused as CUDA refuses them, and what a real GPU would cost is counted: kernels, waits of the host, copies and their bytes.
It fills the empty CUDA device guard of a CPU build of torch through a symbol of libc10; where that is missing, `REASON` says so.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

aten = torch.ops.aten
# What the host must wait for: its result is a Python number, or a tensor whose size is only known to the device.
WAITS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten._unique2, aten.unique_dim}
INDEXES = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
FREE = {
    aten.detach, aten._unsafe_view, aten._local_scalar_dense, aten.lift_fresh, aten._fused_sdp_choice, aten.empty,
    aten.new_empty, aten.empty_like, aten.empty_strided, aten.new_empty_strided,
}  # fmt: skip
CUDA, META = 1, 14  # DeviceType


def _fill_guard() -> str:
    """Give CUDA the guard of meta tensors, which does nothing; the reason where that is not possible."""
    if torch.cuda.is_available():
        return "there is a real GPU"
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        guards = (ctypes.c_void_p * 21).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    except (OSError, ValueError) as error:
        return f"this build of torch shows no registry of device guards ({error})"
    guards[CUDA] = guards[CUDA] or guards[META]
    return ""


REASON = _fill_guard()


class OnCuda(Tensor):
    """A tensor on a device that is not there; `inner` holds its numbers."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor, index: int = 0) -> OnCuda:
        made: OnCuda = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=f"cuda:{index}",
        )  # fmt: skip
        made.inner = inner
        PretendCuda.now.hold(made, index)
        return made

    def tolist(self) -> Any:
        PretendCuda.now.wait("tolist")
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return PretendCuda.now.run(func, args, kwargs or {})


class PretendCuda(TorchDispatchMode):
    """Counts while it is entered; `forget()` begins anew."""

    now: PretendCuda

    def __init__(self, attends: bool = True) -> None:
        super().__init__()
        self.attends = attends  # False: torch's attention gives zeros, where only costs are asked for
        self.current = 0  # device that Triton would launch on
        self._holders: Counter[tuple[int, int]] = Counter()  # device and storage -> tensors on it
        self.held = self.most = 0  # bytes on all devices now, and the most since the last forget()
        self.forget()

    def forget(self) -> None:
        self.kernels, self.waits = Counter[str](), Counter[str]()
        self.copies, self.bytes = Counter[str](), Counter[str]()
        self.flops, self.most = 0, self.held

    def hold(self, made: OnCuda, index: int) -> None:
        """Count the bytes of a storage from its first tensor to the end of its last one."""
        storage = made.inner.untyped_storage()
        key, size = (index, storage._cdata), storage.nbytes()
        self._holders[key] += 1
        if self._holders[key] == 1:
            self.held += size
            self.most = max(self.most, self.held)
        weakref.finalize(made, self._drop, key, size).atexit = False

    def _drop(self, key: tuple[int, int], size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self.held -= size

    def counts(self) -> dict[str, int]:
        return {
            "kernels": self.kernels.total(), "waits": self.waits.total(), "to_host": self.copies["cuda to cpu"],
            "to_device": self.copies["cpu to cuda"], "bytes_to_host": self.bytes["cuda to cpu"],
        }  # fmt: skip

    def __enter__(self) -> Any:
        PretendCuda.now = self
        self._before = [(where, name, getattr(where, name)) for where, name, _ in _PATCHES]
        for where, name, value in _PATCHES:
            setattr(where, name, value)
        self._lift = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device="cuda") becomes a copy that can be seen
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._lift)
        for where, name, value in self._before:
            setattr(where, name, value)

    def wait(self, kind: str) -> None:
        """Note where in the package the host waits."""
        frame: Any = sys._getframe(2)
        while frame and "/sinkscope/" not in frame.f_code.co_filename:
            frame = frame.f_back
        place = f" {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else ""
        self.waits[kind + place] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        if composite and func is not aten.scaled_dot_product_attention.default:
            with _inside(self):
                return func.decompose(*args, **kwargs)
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        there = {one.device for one in tensors if isinstance(one, OnCuda)}
        to = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        if not there and (to is None or to.type != "cuda"):
            return func(*args, **kwargs)
        words = {**kwargs, "device": "cpu"} if to else dict(kwargs)
        words.pop("pin_memory", None)
        plain, words = tree_map(lambda one: one.inner if isinstance(one, OnCuda) else one, (args, words))
        packet = func.overloadpacket
        if any(one.is_meta for one in tree_leaves((plain, words)) if isinstance(one, Tensor)):
            call: Any = _on_shapes(func)
        else:
            call = func
        if packet in (aten._to_copy, aten.copy_):
            return self._copy(call, packet, tensors, to, args, plain, words)
        if there:
            self._refuse_mixed(func, packet, args, tensors, there)
        if packet in WAITS or (
            packet in INDEXES and any(one is not None and one.dtype == torch.bool for one in args[1])
        ):
            self.wait(packet.__name__)
        if not func.is_view and packet not in FREE:
            self.kernels[packet.__name__] += 1
        index = (to or next(iter(there))).index or 0
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args)
        elif packet is aten.scaled_dot_product_attention:
            self.flops += sdpa_flop_count(*(one.shape for one in args[:3]))
        if packet in (aten._scaled_dot_product_flash_attention, aten.scaled_dot_product_attention) and not self.attends:
            out = OnCuda(torch.zeros_like(plain[0]), index)
            return (
                out if packet is aten.scaled_dot_product_attention else (out, OnCuda(plain[0].float().sum(-1), index))
            )
        if (
            packet is aten._scaled_dot_product_flash_attention
        ):  # the CPU has it under another name, without a debug mask
            call, plain = aten._scaled_dot_product_flash_attention_for_cpu.default, plain[:5]
        own = {id(one.inner): one for one in tensors if isinstance(one, OnCuda)}

        def back(one: Any) -> Any:
            if not isinstance(one, Tensor):
                return one
            return own[id(one)] if id(one) in own else OnCuda(one, index)

        return tree_map(back, call(*plain, **words))

    def _copy(self, call: Any, packet: Any, tensors: Any, to: Any, args: Any, plain: Any, words: Any) -> Any:
        into = tensors[0].device if packet is aten.copy_ else to or tensors[0].device
        source = tensors[-1]
        later = bool(words.get("non_blocking")) or (packet is aten.copy_ and len(args) > 2 and bool(args[2]))
        if source.device != into and source.numel():
            kind = f"{source.device.type} to {into.type}"
            self.copies[kind] += 1
            self.bytes[kind] += source.nbytes
            if not later:
                self.wait(kind)
        else:
            self.kernels[packet.__name__] += 1
        out = call(*plain, **words)
        if packet is aten.copy_:
            return args[0]
        if into.type != "cuda" and out.is_meta:
            return torch.zeros(out.shape, dtype=out.dtype)
        return OnCuda(out if out is not plain[0] else out.clone(), into.index or 0) if into.type == "cuda" else out

    @staticmethod
    def _refuse_mixed(func: Any, packet: Any, args: Any, tensors: Any, there: set[torch.device]) -> None:
        """CUDA takes tensors of one device, numbers of the CPU without a dimension, and indices of the CPU."""
        alien = [one for one in tensors if one.device != next(iter(there)) and one.dim()]
        if packet in INDEXES and isinstance(args[0], OnCuda):
            alien = [one for one in alien if isinstance(one, OnCuda) or one.dtype not in (torch.int64, torch.int32)]
        if alien or len(there) > 1:
            raise RuntimeError(f"{func} on {sorted({str(one.device) for one in tensors})}")


def _on_shapes(func: Any) -> Callable[..., Any]:
    """An operation on tensors of which some have shapes alone. Whole numbers that come out are zeros, so that code can go on."""

    def to_meta(one: Any) -> Any:
        return one.to("meta") if isinstance(one, Tensor) else one

    def known(one: Any) -> Any:
        if not isinstance(one, Tensor) or one.is_floating_point():
            return one
        return torch.zeros(one.shape, dtype=one.dtype)

    def run(*args: Any, **words: Any) -> Any:
        if "device" in words:
            words["device"] = "meta"
        found = func(*tree_map(to_meta, args), **tree_map(to_meta, words))
        return args[0] if func.overloadpacket.__name__.endswith("_") else tree_map(known, found)

    return run


@contextmanager
def _inside(mode: PretendCuda) -> Iterator[None]:
    TorchDispatchMode.__enter__(mode)
    try:
        yield
    finally:
        TorchDispatchMode.__exit__(mode, None, None, None)


class Device:
    """In place of torch.cuda.device."""

    def __init__(self, device: Any) -> None:
        self.index = torch.device(device).index or 0

    def __enter__(self) -> None:
        self.before, PretendCuda.now.current = PretendCuda.now.current, self.index

    def __exit__(self, *_: object) -> None:
        PretendCuda.now.current = self.before


class Event:
    """In place of torch.cuda.Event: waiting for it is a wait of the host."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None:
        PretendCuda.now.wait("event")


_PATCHES: tuple[tuple[Any, str, Any], ...] = (
    (torch.cuda, "_lazy_init", lambda: None),
    (torch.cuda, "device", Device),
    (torch.cuda, "Event", Event),
    (torch.cuda, "synchronize", lambda *_: None),
    (torch.cuda, "current_device", lambda: PretendCuda.now.current),
    (torch.cuda, "is_current_stream_capturing", lambda: False),
)


def put(module: nn.Module, index: int = 0, only: Callable[[str], bool] = lambda name: True) -> None:
    """Move parameters and buffers of the parts whose name `only` takes."""
    for path, part in module.named_modules():
        if not only(path):
            continue
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(OnCuda(host(parameter.detach()), index), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = OnCuda(host(buffer), index)


def host(tensor: Tensor) -> Tensor:
    """The numbers of a tensor of either kind, without a wait being counted."""
    return tensor.inner if isinstance(tensor, OnCuda) else tensor


class Kernel:
    """In place of a Triton kernel: launched on the current device, whatever the device of the tensors; one kernel."""

    def __init__(self, kernel: Any, compute: Callable[[dict[str, Any]], None]) -> None:
        self.kernel, self.compute = kernel, compute

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            gpu = PretendCuda.now
            given = {**dict(zip(self.kernel.arg_names, args, strict=False)), **options}
            for name, one in given.items():
                if isinstance(one, Tensor) and (not isinstance(one, OnCuda) or one.device.index != gpu.current):
                    raise ValueError(f"Pointer argument {name} cannot be accessed from Triton (cpu tensor?)")
            gpu.kernels[self.kernel.__name__] += 1
            q, k = given["q"].shape, given["k"].shape
            # Scores, and in the first kernel the sum of values; a masked call computes nothing twice that counts here.
            gpu.flops += (4 if "out" in given else 2) * q[0] * q[1] * q[2] * k[2] * q[3]
            self.compute({name: host(one) if isinstance(one, Tensor) else one for name, one in given.items()})

        return launch


def output(given: dict[str, Any]) -> None:
    """What output_kernel computes, by the formula."""
    scores, dropped = _scores(given), _dropped(given)
    kept = scores.masked_fill(dropped, -torch.inf)
    v = given["v"].float().repeat_interleave(given["share"], dim=1)
    for which, peaks, shares in ((kept, "peaks", "shares"), (scores, "clean_peaks", "clean_shares")):
        if which is scores and not given["DROP"]:
            continue
        peak = which.amax(-1).nan_to_num(neginf=0.0)
        weights = (which - peak[..., None]).exp2()
        total = weights.sum(-1)
        share = torch.where(total == 0, 0.0, 1 / total)
        given[peaks].copy_(peak)
        given[shares].copy_(share)
        if which is kept:
            given["out"].copy_((weights @ v) * share[..., None])


def received(given: dict[str, Any]) -> None:
    """What received_kernel computes, by the formula."""
    scores, dropped = _scores(given), _dropped(given)
    order, starts = given["order"].expand(len(scores), -1).split([given["row_count"], given["group_count"] + 1], 1)
    kept = scores.masked_fill(dropped, -torch.inf)
    for which, into, peaks, shares in (
        (kept, "received", "peaks", "shares"), (scores, "clean", "clean_peaks", "clean_shares"),
    ):  # fmt: skip
        if which is scores and not given["DROP"]:
            continue
        peak = given[peaks] / LN2 if given["LSE"] else given[peaks]
        share = torch.ones_like(peak) if given["LSE"] else given[shares]
        paid = (which - peak[..., None]).exp2() * share[..., None]
        for row, group in itertools.product(range(len(scores)), range(given["group_count"])):
            counted = order[row, starts[row, group] : starts[row, group + 1]]
            given[into][row, :, group] = paid[row, :, counted].sum(1)


LN2 = 0.6931471805599453


def _scores(given: dict[str, Any]) -> Tensor:
    """[batch, head, query, key] in base 2."""
    k = given["k"].float().repeat_interleave(given["share"], dim=1)
    scores = given["q"].float() @ k.mT * given["scale2"]
    if given["MASK"] in (1, 3):
        scores = scores.masked_fill(given["mask"] == 0, -torch.inf)
    elif given["MASK"] == 2:
        mask = given["mask"].float()
        scores = (scores + mask / LN2).masked_fill(mask <= given["masked_at"], -torch.inf)
    if given["ORDER"]:
        positions, block = torch.arange(scores.shape[2])[:, None] + given["offset"], given["block"]
        scores = scores.masked_fill(torch.arange(scores.shape[3]) // block > positions // block, -torch.inf)
    return scores


def _dropped(given: dict[str, Any]) -> Tensor:
    """bool [batch | 1, head | 1, query | 1, key]."""
    if not given["DROP"]:
        return torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    dropped = (given["drop"] != 0)[:, :, None]
    if given["KEEP_SELF"]:
        own = torch.arange(given["q"].shape[2])[:, None] + given["offset"]
        dropped = dropped & (own != torch.arange(given["k"].shape[2]))
    return dropped


def split(module: Any) -> None:
    """Put the first half of a transformers model on cuda:0 and the rest on cuda:1, as accelerate's device map does."""
    layers = list(module.base_model.layers)
    half = len(layers) // 2
    put(module, 0)
    for part in (*layers[half:], module.base_model.norm, module.get_output_embeddings()):
        put(part, 1)

    def mover(index: int) -> Any:
        def to(one: Any) -> Any:
            return one.to(f"cuda:{index}") if isinstance(one, Tensor) else one

        return lambda part, args, words: tree_map(to, (args, words))

    places = [(module.base_model.embed_tokens, 0), (module.base_model.norm, 1), (module.get_output_embeddings(), 1)]
    for part, index in (*places, *((layer, int(number >= half)) for number, layer in enumerate(layers))):
        part.register_forward_pre_hook(mover(index), with_kwargs=True)

    def home(_: Any, __: Any, found: Any) -> Any:
        found.logits = found.logits.to("cuda:0")
        return found

    module.register_forward_hook(home)


def count_only(given: dict[str, Any]) -> None:
    """Zeros in place of results, where only costs are asked for."""
    for name in ("out", "peaks", "shares", "clean_peaks", "clean_shares", "received", "clean"):
        if isinstance(given.get(name), Tensor):
            given[name].zero_()


def parts(names: Iterable[str]) -> Callable[[str], bool]:
    """Names of modules, with everything inside them."""
    chosen = tuple(names)
    return lambda path: any(path == name or path.startswith(name + ".") for name in chosen)
