"""Write tests/vectors/*.npz: values made with PyTorch, to which the tests hold the library without needing PyTorch.

    python tests/make_vectors.py            # needs PyTorch and transformers; on the CPU, float64, deterministic

The files are in the repository; run it again only when a case is added or changed.
"""

import torch
from vectors import (
    activations,
    attention,
    batchnorm,
    differences,
    feedforward,
    gpt,
    layers,
    losses,
    multi_head,
    norms,
    optimizers,
    recurrent,
    scaled_dot_product,
    seq2seq,
    torch_map,
    transformer,
    vit,
)
from vectors.recorder import FOLDER


def main() -> None:
    torch.set_num_threads(1)  # sums in a fixed order
    torch.use_deterministic_algorithms(True)
    for part in (
        layers,
        activations,
        batchnorm,
        feedforward,
        attention,
        losses,
        multi_head,
        norms,
        optimizers,
        gpt,
        transformer,
        recurrent,
        scaled_dot_product,
        seq2seq,
        vit,
        torch_map,
        differences,
    ):
        part.write()
    for path in sorted(FOLDER.glob("*.npz")):
        print(f"{path.name:16} {path.stat().st_size / 1024:6.1f} KB")


if __name__ == "__main__":
    main()
