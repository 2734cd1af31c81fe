"""Recurrent encoder-decoders in plain PyTorch: logits, loss and every gradient of each decoder, context and cell.

Parameters have our names and layouts: matrices are (in, out).
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from vectors.recorder import Recorder

SOURCE_VOCAB, TARGET_VOCAB, DIM, HIDDEN = 9, 8, 3, 4
LENGTHS, S, T = [6, 4, 1], 6, 5
FORMS = {
    "initial": {"cell": "lstm", "layers": 2, "bidirectional": False, "context": "last", "decoder": "initial"},
    "every step": {"cell": "gru", "layers": 1, "bidirectional": True, "context": "both", "decoder": "every_step"},
    "additive": {"cell": "gru", "layers": 2, "bidirectional": True, "context": "both", "decoder": "additive"},
    "additive lstm": {"cell": "lstm", "layers": 1, "bidirectional": True, "context": "last", "decoder": "additive"},
    "general": {"cell": "lstm", "layers": 1, "bidirectional": True, "context": "mean", "decoder": "general"},
    "dot": {"cell": "rnn", "layers": 1, "bidirectional": False, "context": "max", "decoder": "dot"},
}
NETWORKS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class Net(nn.Module):
    def __init__(self, cell: str, layers: int, bidirectional: bool, context: str, decoder: str) -> None:
        super().__init__()
        self.pair, self.layers, self.context, self.kind = cell == "lstm", layers, context, decoder
        memory = (2 if bidirectional else 1) * HIDDEN
        c = HIDDEN if context == "last" else memory
        beside = {"every_step": c, "additive": memory}.get(decoder, 0)
        self.source_embedding, self.embedding = nn.Embedding(SOURCE_VOCAB, DIM), nn.Embedding(TARGET_VOCAB, DIM)
        self.encoder = NETWORKS[cell](DIM, HIDDEN, layers, batch_first=True, bidirectional=bidirectional)
        self.network = NETWORKS[cell](DIM + beside, HIDDEN, layers, batch_first=True)
        self.bridge = (
            nn.Linear(c, (2 if self.pair else 1) * layers * HIDDEN) if bidirectional or context != "last" else None
        )
        if decoder == "additive":
            self.query, self.key = nn.Linear(HIDDEN, HIDDEN, bias=False), nn.Linear(memory, HIDDEN, bias=False)
            self.v = nn.Parameter(torch.zeros(HIDDEN))
        if decoder == "general":
            self.query = nn.Linear(HIDDEN, memory, bias=False)
        if decoder in ("dot", "general"):
            self.combine = nn.Linear(memory + HIDDEN, HIDDEN, bias=False)
        self.head = nn.Linear(HIDDEN + (DIM + beside if beside else 0), TARGET_VOCAB)

    def forward(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(
            self.source_embedding(source), torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False
        )
        outputs, final = self.encoder(packed)
        memory = pad_packed_sequence(outputs, batch_first=True, total_length=S)[0]
        hidden = torch.arange(S) >= torch.tensor(LENGTHS)[:, None]
        context = self.encode(memory, final[0] if self.pair else final, hidden)
        state = final if self.bridge is None else self.bridged(context)
        x = self.embedding(target_in)
        if self.kind == "initial":
            return self.head(self.network(x, state)[0])
        if self.kind == "every_step":
            x = torch.cat([x, context[:, None].expand(-1, T, -1)], dim=2)
            return self.head(torch.cat([self.network(x, state)[0], x], dim=2))
        if self.kind == "additive":
            return self.additive(x, state, memory, hidden)
        y = self.network(x, state)[0]
        scores = (self.query(y) if self.kind == "general" else y) @ memory.mT
        looked = F.softmax(scores.masked_fill(hidden[:, None], -torch.inf), dim=2) @ memory
        return self.head(torch.tanh(self.combine(torch.cat([looked, y], dim=2))))

    def encode(self, memory: torch.Tensor, h: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        if self.context == "last":
            return h[-2] if self.encoder.bidirectional else h[-1]
        if self.context == "both":
            return torch.cat([h[-2], h[-1]], dim=1)
        if self.context == "mean":
            return torch.stack([row[:length].mean(dim=0) for row, length in zip(memory, LENGTHS, strict=True)])
        return memory.masked_fill(hidden[:, :, None], -torch.inf).amax(dim=1)

    def bridged(self, context: torch.Tensor):
        parts = torch.tanh(self.bridge(context)).chunk((2 if self.pair else 1) * self.layers, dim=1)
        h = torch.stack(parts[: self.layers])
        return (h, torch.stack(parts[self.layers :])) if self.pair else h

    def additive(self, x: torch.Tensor, state, memory: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        features = []
        for t in range(T):
            top = (state[0] if self.pair else state)[-1]
            scores = torch.tanh(self.query(top)[:, None] + self.key(memory)) @ self.v
            looked = (F.softmax(scores.masked_fill(hidden, -torch.inf), dim=1)[:, None] @ memory)[:, 0]
            y, state = self.network(torch.cat([x[:, t], looked], dim=1)[:, None], state)
            features.append(torch.cat([y[:, 0], x[:, t], looked], dim=1))
        return self.head(torch.stack(features, dim=1))


def ours(name: str, directions: int) -> str:
    """encoder.weight_ih_l1_reverse -> encoder.network.cells.3.weight_ih, and so on."""
    owner, _, rest = name.partition(".")
    if owner in ("encoder", "network"):
        kind, _, place = rest.rpartition("_l")
        layer, _, reverse = place.partition("_")
        side, directions = ("encoder", directions) if owner == "encoder" else ("decoder", 1)
        return f"{side}.network.cells.{int(layer) * directions + bool(reverse)}.{kind}"
    prefix = {
        "source_embedding": "encoder.embedding", "bridge": "encoder.bridge.linear", "query": "decoder.attention.query",
        "key": "decoder.attention.key", "v": "decoder.attention.v", "combine": "decoder.combine",
    }.get(owner, owner)  # fmt: skip
    return f"{prefix}.{rest}" if rest else prefix


def layout(name: str, array: np.ndarray) -> np.ndarray:
    """(out, in) to (in, out) and back; tables of embeddings stay."""
    return np.ascontiguousarray(array.T) if array.ndim == 2 and "embedding" not in name else array


def write() -> None:
    r = Recorder(seed=12)
    source = r.rng.randint(1, SOURCE_VOCAB, (len(LENGTHS), S))
    for row, length in zip(source, LENGTHS, strict=True):
        row[length:] = 0
    target = r.rng.randint(3, TARGET_VOCAB, (len(LENGTHS), T))
    target_in = np.concatenate([np.ones((len(LENGTHS), 1), int), target[:, :-1]], axis=1)
    target[1, 3:], target_in[1, 3:] = -100, 0  # a shorter target
    r.put(source=source, target_in=target_in, target=target, sizes=[SOURCE_VOCAB, TARGET_VOCAB, DIM, HIDDEN])
    for name, form in FORMS.items():
        net = Net(**form).double()
        with torch.no_grad():
            for tensor in net.parameters():
                tensor.copy_(torch.tensor(r.draw(*tensor.shape, scale=0.5)))
        logits = net(torch.tensor(source), torch.tensor(target_in))
        loss = F.cross_entropy(logits.reshape(-1, TARGET_VOCAB), torch.tensor(target).reshape(-1))
        loss.backward()
        r.put(**{f"{name}/logits": logits.detach().numpy(), f"{name}/loss": loss.item()})
        for theirs, tensor in net.named_parameters():
            key = ours(theirs, 2 if form["bidirectional"] else 1)
            values = tensor.detach().numpy().astype(np.float32)
            r.put(**{f"{name}/parameter {key}": layout(theirs, values)})
            r.put(**{f"{name}/gradient {key}": layout(theirs, tensor.grad.numpy())})
    r.write("seq2seq")
