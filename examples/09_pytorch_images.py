"""Tune a convolutional network of PyTorch on pictures, with checkpoints of its whole state.

On this machine, with two worker processes (needs scikit-learn and PyTorch; a GPU is not needed):

    python examples/09_pytorch_images.py

On a Dask cluster, whose workers also have dasktune and these packages; with a GPU for each trial:

    python examples/09_pytorch_images.py --gpus 1 --address tcp://127.0.0.1:8786
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import Any

import numpy as np

import dasktune as tune
from dasktune.schedulers import ASHAScheduler

#: The largest number of epochs (passes over the training data). Few configurations reach it.
MAX_EPOCHS = 9

Pictures = tuple[np.ndarray, np.ndarray]


def split_pictures() -> tuple[Pictures, Pictures, Pictures]:
    """Return pictures with their digits: 60 % to train, 20 % to select a network, 20 % to test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32").reshape(-1, 1, 8, 8)
    train_x, rest_x, train_y, rest_y = train_test_split(x, y, test_size=0.4, stratify=y, random_state=0)
    val_x, test_x, val_y, test_y = train_test_split(
        rest_x, rest_y, test_size=0.5, stratify=rest_y, random_state=0
    )
    return (train_x, train_y), (val_x, val_y), (test_x, test_y)


def new_network(config: dict[str, Any]) -> Any:
    """Return an untrained network: two layers of convolutions, and one that tells the digit."""
    from torch import nn

    channels = config["channels"]
    return nn.Sequential(
        nn.Conv2d(1, channels, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.Dropout(config["dropout"]),
        nn.Flatten(),
        nn.Linear(2 * channels * 4 * 4, 10),
    )


def accuracy(network: Any, pictures: Pictures, device: str) -> float:
    """Return the share of pictures whose digit the network tells."""
    import torch

    network.eval()
    x, y = pictures
    with torch.no_grad():
        told = network(torch.as_tensor(x, device=device)).argmax(dim=1).cpu().numpy()
    return float(np.mean(told == y))


def train(config: dict[str, Any], data: tuple[Pictures, Pictures, Pictures]) -> None:
    """Train for up to MAX_EPOCHS, and report after each epoch; the workers run this."""
    import torch
    from torch.nn.functional import cross_entropy

    from dasktune.integration.torch import load_state, report_state

    device = "cuda" if tune.get_context().get_gpu_ids() else "cpu"
    torch.manual_seed(config["seed"])
    (train_x, train_y), validation, _ = data
    # The arrays are shared by the trials of a worker and read-only; these are copies on the device.
    x, y = torch.tensor(train_x, device=device), torch.tensor(train_y, device=device)
    network = new_network(config).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=config["rate"], weight_decay=config["decay"])
    parts = {"network": network, "optimizer": optimizer, "random": torch.default_generator}
    # A trial whose worker was lost continues with its network, and with the same random numbers.
    first = load_state(tune.get_checkpoint(), **parts, epoch=0)["epoch"]
    for epoch in range(first, MAX_EPOCHS):
        network.train()
        for rows in torch.randperm(len(x)).split(config["batch"]):
            optimizer.zero_grad()
            cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
        report_state({"accuracy": accuracy(network, validation, device)}, **parts, epoch=epoch + 1)


def main() -> None:
    """Run the search; test the best network, which is loaded from its checkpoint."""
    options = parse_arguments()
    if find_spec("torch") is None:
        print("Nothing done: install torch first.")
        return
    data = split_pictures()
    trainable = tune.with_resources(
        tune.with_parameters(train, data=data),
        {"cpu": 1, "gpu": options.gpus} if options.gpus else {"cpu": 1},
    )
    results = tune.Tuner(
        trainable,
        param_space={
            "channels": tune.choice([8, 16, 32]),
            "dropout": tune.uniform(0.0, 0.5),
            "rate": tune.loguniform(1e-4, 1e-1),
            "decay": tune.loguniform(1e-6, 1e-1),
            "batch": tune.choice([32, 64, 128]),
            "seed": 0,
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=options.num_samples,
            scheduler=ASHAScheduler(max_t=MAX_EPOCHS, grace_period=1, reduction_factor=3),
            seed=0,
        ),
        run_config=tune.RunConfig(
            storage_path=options.storage_path,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="accuracy"),
        ),
        client=options.address,
    ).fit()
    show(results, data[2])


def show(results: tune.ResultGrid, test: Pictures) -> None:
    """Print the best configuration, the accuracy of its network, and the work that was saved."""
    from dasktune.integration.torch import load_state

    best = results.get_best_result(scope="all")
    checkpoint = best.get_best_checkpoint("accuracy", "max")
    assert checkpoint is not None
    network = new_network(best.config)
    load_state(checkpoint, network=network)
    shown = ", ".join(f"{key}={value:.3g}" for key, value in best.config.items() if key != "seed")
    print(f"Best of {len(results)} configurations: {shown}")
    print(f"Accuracy on pictures that it has never seen: {accuracy(network, test, 'cpu'):.1%}")
    trained, full = sum(len(result.history) for result in results), len(results) * MAX_EPOCHS
    print(f"Early stopping saved {1 - trained / full:.0%} of the work: {trained} epochs, not {full}.")


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Tune a convolutional network on pictures of digits.")
    parser.add_argument("--address", help="of a Dask scheduler; without it, this machine is used")
    parser.add_argument("--gpus", type=float, default=0, help="of each trial; default: 0")
    parser.add_argument("--storage-path", help="where results go; default: ~/dasktune_results")
    parser.add_argument("--num-samples", type=int, default=16, help="configurations; default: 16")
    return parser.parse_args()


# The worker processes of a local cluster import this file. They must not start another search.
if __name__ == "__main__":
    main()
