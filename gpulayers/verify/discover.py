"""Every op and every layer that the library has, found by looking, so that none is forgotten."""

import importlib
import inspect
import pkgutil
from types import ModuleType

import gpulayers.layers
import gpulayers.ops
from gpulayers.layers.layer import Layer
from gpulayers.ops.op import Op


def modules(package: ModuleType) -> list[ModuleType]:
    """All modules of a package, imported."""
    return [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]


def find_ops() -> dict[str, Op]:
    """Every module-level `Op` of gpulayers.ops by its name. Raises ValueError if two have the same name."""
    found: dict[str, Op] = {}
    for module in modules(gpulayers.ops):
        for op in vars(module).values():
            if isinstance(op, Op) and found.setdefault(op.name, op) is not op:
                raise ValueError(f"two ops are called {op.name!r}, one of them in {module.__name__}")
    return found


def find_layers() -> dict[str, type[Layer]]:
    """Every public layer of gpulayers.layers by its name."""
    return {
        name: kind
        for module in modules(gpulayers.layers)
        for name, kind in vars(module).items()
        if inspect.isclass(kind)
        and issubclass(kind, Layer)
        and kind is not Layer
        and not inspect.isabstract(kind)
        and kind.__module__ == module.__name__
    }
