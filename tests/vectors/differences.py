"""What PyTorch does where this library does something else; docs/differences.md."""

import numpy as np
import torch
import torch.nn.functional as F
from vectors.recorder import Recorder, numpy


def write() -> None:
    r = Recorder(seed=14)
    value = torch.arange(12.0).reshape(1, 1, 3, 4)
    query, key = torch.ones(1, 1, 1, 4), torch.zeros(1, 1, 3, 4)
    r.put(**{"causal": numpy(F.scaled_dot_product_attention(query, key, value, is_causal=True))})
    hide = torch.tensor([[False, True, True]])
    r.put(**{"masks sdpa": numpy(F.scaled_dot_product_attention(query, key, value, attn_mask=hide))})
    attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    hidden = attention(*[torch.ones(1, 3, 4)] * 3, key_padding_mask=torch.ones(1, 3, dtype=torch.bool))[0]
    r.put(**{"all keys hidden": numpy(hidden)})
    r.put(**{"all targets ignored": numpy(F.cross_entropy(torch.ones(2, 3), torch.tensor([-100, -100])))})
    bias = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([bias], lr=0.1, weight_decay=0.5)
    bias.grad = torch.zeros(2)
    optimizer.step()
    r.put(**{"weight decay": numpy(bias)})
    for name, gradient in {"clipping": [3.0, 4.0], "bad norm": [np.inf, 1.0]}.items():
        bias.grad = torch.tensor(gradient)
        torch.nn.utils.clip_grad_norm_([bias], 1.0)
        r.put(**{name: numpy(bias.grad)})
    bias.grad = torch.tensor([np.nan, 1.0])
    optimizer.step()
    r.put(**{"skipped step": numpy(bias)})
    r.put(**{"weights": np.array(torch.nn.Linear(3, 4).weight.shape)})
    r.put(**{"batch first": np.array(torch.nn.GRU(3, 4)(torch.zeros(5, 2, 3))[1].shape)})  # (layers, B, H): B is 2
    norm = torch.nn.BatchNorm1d(2)
    norm(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    r.put(**{"running statistics": numpy(norm.running_mean)})  # moved by forward alone
    for name, function in {
        "relu": F.relu,
        "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
        "prelu": lambda x: F.prelu(x, torch.tensor([0.25])),
        "l1_loss": lambda x: F.l1_loss(x, torch.zeros(1, 1)),
    }.items():
        x = torch.zeros(1, 1, requires_grad=True)
        function(x).sum().backward()
        r.put(**{f"kinks {name}": numpy(x.grad)})
    r.write("differences")
