"""Parameter groups with settings of their own, under names that PyTorch and this library share.

name: (class, the optimizer's options, options of the groups by parameter). What is in no group has the optimizer's.
"""

from typing import Any

Options = dict[str, Any]

GROUPS: dict[str, tuple[str, Options, dict[str, Options]]] = {
    "groups sgd": (
        "SGD",
        {"lr": 0.1, "momentum": 0.9},
        {"vector": {"lr": 0.05, "momentum": 0.0}, "table": {"lr": 0.2, "nesterov": True, "weight_decay": 0.1}},
    ),
    "groups sgd dampening": (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.5},
        {"vector": {"dampening": 0.2, "maximize": True}, "table": {"momentum": 0.0, "weight_decay": 0.1}},
    ),
    "groups adam": (
        "Adam",
        {"lr": 0.01},
        {
            "vector": {"betas": (0.8, 0.95), "lr": 0.1, "weight_decay": 0.3},
            "table": {"eps": 1e-2, "maximize": True, "decoupled_weight_decay": True, "weight_decay": 0.2},
        },
    ),
    "groups amsgrad": (
        "Adam",
        {"lr": 0.01, "betas": (0.8, 0.6), "amsgrad": True},
        {"vector": {"betas": (0.5, 0.9)}, "table": {"lr": 0.1, "eps": 1e-3}},
    ),
    "groups adamw": (
        "AdamW",
        {"lr": 0.01, "weight_decay": 0.1},
        {"vector": {"betas": (0.7, 0.8)}, "table": {"weight_decay": 0.5, "lr": 0.02}},
    ),
    "groups nadam": (
        "NAdam",
        {"lr": 0.01, "weight_decay": 0.1},
        {
            "vector": {"betas": (0.8, 0.95), "momentum_decay": 0.1},
            "table": {"decoupled_weight_decay": True, "weight_decay": 0.2, "lr": 0.05, "maximize": True},
        },
    ),
    "groups radam": (
        "RAdam",
        {"lr": 0.01},
        {"vector": {"betas": (0.8, 0.6)}, "table": {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.2}},
    ),
    "groups adamax": (
        "Adamax",
        {"lr": 0.01},
        {"vector": {"betas": (0.8, 0.6), "eps": 1e-3}, "table": {"lr": 0.1, "weight_decay": 0.2, "maximize": True}},
    ),
    "groups rmsprop": (
        "RMSprop",
        {"lr": 0.01},
        {"vector": {"alpha": 0.8, "momentum": 0.9}, "table": {"eps": 1e-2, "lr": 0.03, "weight_decay": 0.1}},
    ),
    "groups rmsprop centered": (
        "RMSprop",
        {"lr": 0.01, "alpha": 0.8, "eps": 1e-3, "centered": True, "momentum": 0.5},
        {"vector": {"alpha": 0.6}, "table": {"momentum": 0.0, "maximize": True}},
    ),
    "groups adagrad": (
        "Adagrad",
        {"lr": 0.1, "initial_accumulator_value": 0.5},
        {"vector": {"lr_decay": 0.1}, "table": {"lr": 0.3, "eps": 1e-2, "weight_decay": 0.1}},
    ),
    "groups adadelta": (
        "Adadelta",
        {"lr": 1.0},
        {"vector": {"rho": 0.5, "lr": 0.5}, "table": {"eps": 1e-3, "weight_decay": 0.1, "maximize": True}},
    ),
    "groups rprop": (
        "Rprop",
        {"lr": 0.1},
        {"vector": {"etas": (0.3, 1.5)}, "table": {"lr": 0.2, "step_sizes": (0.05, 0.3), "maximize": True}},
    ),
    "groups asgd": (
        "ASGD",
        {"lr": 0.1, "lambd": 0.1, "t0": 3},
        {"vector": {"alpha": 0.5, "lambd": 0.2}, "table": {"lr": 0.02, "t0": 5, "weight_decay": 0.1}},
    ),
    "groups adafactor": (
        "Adafactor",
        {"lr": 0.5, "eps": (1e-4, 1e-2)},
        {"vector": {"beta2_decay": -0.5, "lr": 0.2}, "table": {"d": 1.5, "eps": (1e-3, 1e-1), "weight_decay": 0.1}},
    ),
}
