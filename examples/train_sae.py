"""Train a small sparse autoencoder on a diffusion model's activations, and say how well it reconstructs them at each step.

python examples/train_sae.py --prompts 64 --out sae-activations
"""

import argparse

import torch
from torch import nn

import sinkscope as sk


class SparseAutoencoder(nn.Module):
    """TopK: the k largest features of each vector are kept."""

    def __init__(self, width: int, features: int, k: int) -> None:
        super().__init__()
        self.encoder, self.decoder, self.k = nn.Linear(width, features), nn.Linear(features, width), k
        self.decoder.weight.data = self.encoder.weight.data.mT.clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        active = self.encoder(x).relu().topk(self.k, dim=-1)
        return self.decoder(torch.zeros(len(x), self.encoder.out_features).scatter(-1, active.indices, active.values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smol-dream")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", default="sae-activations")
    given = parser.parse_args()
    torch.manual_seed(0)
    model = sk.load(given.model)
    layer, width = model.config.num_hidden_layers // 2, model.config.hidden_size
    prompts = [problem.prompt for problem in sk.tasks.problems("arithmetic", n=given.prompts, split="train", seed=0)]
    shards = sk.activations(model, prompts, layers=[layer], at="masked", out=given.out, batch=4, length=32)
    place, sae = f"layers.{layer}.resid_post", SparseAutoencoder(width, 4 * width, k=32)
    optimiser = torch.optim.Adam(sae.parameters(), lr=1e-3)
    first = next(iter(shards))[place].float()
    mean, scale = first.mean(0), first.std(0) + 1e-6  # outlier channels would be all that it learns
    for epoch in range(given.epochs):
        for number, shard in enumerate(shards):  # one in memory at a time; the last prompts are held out
            vectors = (shard[place].float() - mean) / scale
            for batch in vectors[torch.randperm(len(vectors))].split(128) if number < len(shards) - 1 else []:
                loss = (sae(batch) - batch).square().sum() / batch.square().sum()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        print(f"epoch {epoch}: share of variance not reconstructed {loss.item():.3f}")
    with torch.no_grad():
        for step in shard["step"].unique().tolist():
            here = vectors[shard["step"] == step]
            left = (sae(here) - here).square().sum() / here.square().sum()
            print(f"step {step}: {len(here)} held-out vectors, share of variance not reconstructed {left.item():.3f}")


if __name__ == "__main__":
    main()
