"""Reading a model, its sizes and its weights, from the one file that its `save` wrote."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from gpulayers.layers.layer import Layer
from gpulayers.parameter import room_for
from gpulayers.storage import FileError, StrPath, load_tensors, refuse_not_finite

Model = TypeVar("Model", bound=Layer)


def load_model(path: StrPath, name: str, make: Callable[..., Model]) -> Model:
    """make(**sizes) with the file's weights; the sizes are JSON, under <name>_config in the file's metadata.

    name: of the model, for people. Raises `storage.FileError`, one sentence, for a file that holds no such model, or
    not a whole one.
    """
    tensors, metadata = load_tensors(path)
    key = f"{name.lower()}_config"
    if key not in metadata:
        raise FileError(f"{path} holds no {name} (its metadata has no {key})")
    refuse_not_finite(path, tensors)
    try:
        sizes: dict[str, Any] = json.loads(metadata[key])
        with room_for(tensors.values()):
            model = make(**sizes)
        model.load_state_dict(tensors)
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        raise FileError(f"{path} does not hold a whole {name}: {error}") from error
    return model
