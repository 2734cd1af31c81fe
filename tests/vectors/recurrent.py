"""RNN, GRU and LSTM: all outputs in one row, gradients of the input, the initial states and the parameters."""

import numpy as np
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from vectors.recorder import Recorder

B, T, INPUT, H = 4, 5, 3, 2
LENGTHS = np.array([3, 5, 1, 4])  # not sorted
KINDS = {"rnn": torch.nn.RNN, "relu": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
CELLS = {"rnn": torch.nn.RNNCell, "relu": torch.nn.RNNCell, "gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}
FORMS = {
    "plain": ({}, False),  # without initial states
    "initial state": ({}, False),
    "no bias": ({"bias": False}, False),
    "lengths": ({}, True),
    "both directions": ({"bidirectional": True}, False),
    "both directions, lengths": ({"bidirectional": True}, True),
    "two layers, lengths": ({"num_layers": 2}, True),
    "two layers, both directions, lengths": ({"num_layers": 2, "bidirectional": True}, True),
}


def write() -> None:
    r = Recorder(seed=11)
    r.put(lengths=LENGTHS)
    for kind in KINDS:
        more = {"nonlinearity": "relu"} if kind == "relu" else {}
        for form, (options, with_lengths) in FORMS.items():
            module = KINDS[kind](INPUT, H, batch_first=True, **options, **more)
            sequences(r, f"{kind} {form}", module, form != "plain", with_lengths)
        one_step(r, f"{kind} cell", CELLS[kind](INPUT, H, **more))
    r.write("recurrent")


def ours(name: str, directions: int) -> str:
    """weight_ih_l1_reverse -> layer.cells.3.weight_ih, where there are both directions."""
    kind, _, place = name.rpartition("_l")
    layer, _, reverse = place.partition("_")
    return f"layer.cells.{int(layer) * directions + bool(reverse)}.{kind}"


def parameters(r: Recorder, module: torch.nn.Module, rename) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Our names and (in, out) values, and PyTorch's name of each keyword."""
    values, names = {}, {}
    for name, tensor in module.named_parameters():
        values[rename(name)] = np.ascontiguousarray(r.draw(*tensor.shape, scale=0.5).T)
        names[rename(name).replace(".", "_")] = name
    return values, names


def called(module: torch.nn.Module, names: dict[str, str], tensors: dict[str, torch.Tensor], *args):
    theirs = {names[key]: tensor.mT if tensor.ndim == 2 else tensor for key, tensor in tensors.items()}
    return torch.func.functional_call(module, theirs, args)


def row(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def sequences(r: Recorder, name: str, module: torch.nn.RNNBase, given: bool, with_lengths: bool) -> None:
    pair, directions = isinstance(module, torch.nn.LSTM), 1 + module.bidirectional
    values, names = parameters(r, module.double(), lambda n: ours(n, directions))

    def forward(x, *states, **tensors):
        if with_lengths:
            x = pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
        args = () if not states else (states,) if pair else states
        y, last = called(module, names, tensors, x, *args)
        if with_lengths:
            y = pad_packed_sequence(y, batch_first=True, total_length=T)[0]
        return row(y, *(last if pair else (last,)))

    states = [r.draw(module.num_layers * directions, B, H) for _ in range(1 + pair)] if given else []
    r.case(name, forward, [r.draw(B, T, INPUT), *states], values)


def one_step(r: Recorder, name: str, module: torch.nn.RNNCellBase) -> None:
    pair = isinstance(module, torch.nn.LSTMCell)
    values, names = parameters(r, module.double(), lambda n: f"layer.{n}")

    def forward(x, *states, **tensors):
        last = called(module, names, tensors, x, states if pair else states[0])
        return row(*(last if pair else (last,)))

    r.case(name, forward, [r.draw(B, INPUT), *(r.draw(B, H) for _ in range(1 + pair))], values)
