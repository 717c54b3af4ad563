"""Muon for the matrices inside the layers, AdamW for everything else; both with plain tensors as state.

State is a flat dict of tensors, so that a checkpoint can hold it in safetensors and give it back bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lab.recipe import Optimiser


def learning_rate(step: int, steps: int, settings: Optimiser) -> float:
    """Share of the full rate at this step: linear rise, plateau, linear fall to zero at the last step."""
    rise = min(1.0, (step + 1) / max(1, settings.warmup))
    fall = min(1.0, (steps - step) / max(1.0, settings.decay * steps))
    return min(rise, fall)


def orthogonalise(update: Tensor, rounds: int = 5) -> Tensor:
    """Bring all singular values of [..., rows, columns] near 1 by Newton-Schulz rounds (Muon's quintic)."""
    tall = update.shape[-2] > update.shape[-1]
    x = update.mT if tall else update
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    found: Tensor = x.mT if tall else x
    return found


class Optimisation:
    """The two optimisers over a module's parameters, and the running mean of the weights."""

    def __init__(self, module: nn.Module, settings: Optimiser) -> None:
        self.settings = settings
        self.parameters = dict(module.named_parameters())
        self.state = self._begin()
        for name, parameter in self.parameters.items():
            self.state[f"mean.{name}"] = parameter.detach().clone()

    def _begin(self) -> dict[str, Tensor]:
        settings = self.settings
        self.matrices = [n for n, p in self.parameters.items() if settings.matrices == "muon" and _is_matrix(n, p)]
        self.others = [n for n in self.parameters if n not in set(self.matrices)]
        state: dict[str, Tensor] = {}
        for name in self.matrices:
            state[f"momentum.{name}"] = torch.zeros_like(self.parameters[name])
        for name in self.others:
            state[f"first.{name}"] = torch.zeros_like(self.parameters[name])
            state[f"second.{name}"] = torch.zeros_like(self.parameters[name])
        return state

    @torch.no_grad()
    def step(self, step: int, steps: int) -> float:
        """Apply the gradients; give back their norm before clipping."""
        settings, share = self.settings, learning_rate(step, steps, self.settings)
        norm = torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), settings.clip)
        self._update(step, share)
        # A short mean at first, or the random start would be felt for a long time.
        decay = min(settings.ema, (step + 1) / (step + 10))
        names = list(self.parameters)
        torch._foreach_lerp_(
            [self.state[f"mean.{n}"] for n in names], [self.parameters[n].detach() for n in names], 1 - decay
        )
        for parameter in self.parameters.values():
            parameter.grad = None
        return float(norm)

    def _update(self, step: int, share: float) -> None:
        settings = self.settings
        gradients = {n: p.grad for n, p in self.parameters.items() if p.grad is not None}
        self._adamw([n for n in self.others if n in gradients], step, share * settings.rate)
        self._muon([n for n in self.matrices if n in gradients], share * settings.matrix_rate)

    def _adamw(self, names: list[str], step: int, rate: float) -> None:
        first_decay, second_decay = self.settings.betas
        for name in names:
            parameter, gradient = self.parameters[name], self.parameters[name].grad
            assert gradient is not None
            first, second = self.state[f"first.{name}"], self.state[f"second.{name}"]
            first.lerp_(gradient, 1 - first_decay)
            second.mul_(second_decay).addcmul_(gradient, gradient, value=1 - second_decay)
            unbiased = first / (1 - first_decay ** (step + 1))
            scale = (second / (1 - second_decay ** (step + 1))).sqrt_().add_(1e-8)
            if parameter.ndim > 1:
                parameter.mul_(1 - rate * self.settings.weight_decay)
            parameter.addcdiv_(unbiased, scale, value=-rate)

    def _muon(self, names: list[str], rate: float) -> None:
        shapes: dict[torch.Size, list[str]] = {}
        for name in names:
            shapes.setdefault(self.parameters[name].shape, []).append(name)
        for shape, same in shapes.items():  # one batched Newton-Schulz a shape: fewer, larger products
            updates = []
            for name in same:
                gradient = self.parameters[name].grad
                assert gradient is not None
                momentum = self.state[f"momentum.{name}"].lerp_(gradient, 1 - self.settings.momentum)
                updates.append(gradient.lerp(momentum, self.settings.momentum))
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for name, update in zip(same, orthogonalise(torch.stack(updates)).unbind(0), strict=True):
                parameter = self.parameters[name]
                parameter.mul_(1 - rate * self.settings.weight_decay)
                parameter.add_(update, alpha=-rate * scale)

    def mean_weights(self) -> dict[str, Tensor]:
        """The running mean of the weights, by parameter name: what is evaluated and exported."""
        return {name: self.state[f"mean.{name}"] for name in self.parameters}


class TorchAdamW(Optimisation):
    """torch's own AdamW for every parameter; it decays the norms' gains too."""

    def _begin(self) -> dict[str, Tensor]:
        settings = self.settings
        self.adamw = torch.optim.AdamW(
            self.parameters.values(), settings.rate, settings.betas, weight_decay=settings.weight_decay
        )
        state: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():  # as torch makes it at the first step
            held = {"step": torch.tensor(0.0), **{k: torch.zeros_like(parameter) for k in ("exp_avg", "exp_avg_sq")}}
            self.adamw.state[parameter] = held
            state |= {f"adam.{key}.{name}": tensor for key, tensor in held.items()}
        return state

    def _update(self, step: int, share: float) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = share * self.settings.rate
        self.adamw.step()


def _is_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and ".layers." in f".{name}"
