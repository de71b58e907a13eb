"""A stand-in for torchvision, for machines where no build of it fits the installed torch.

vLLM's Qwen3.5 module imports image processors that import torchvision; a text model never calls them. Every name and
submodule exists here; nothing works. Put this folder's parent on PYTHONPATH, since vLLM inspects models in a process
of its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

__version__ = "0.0.0"


class _Nothing:
    """A class so that it can be inherited from, called, or used as a dictionary key."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("torchvision is a stand-in here: images can't be processed")


class _Module(types.ModuleType):
    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Nothing,), {"__module__": self.__name__, "__class_getitem__": classmethod(lambda c, _: c)})


class _Enumish(type):
    """`InterpolationMode.BICUBIC` and the like: any attribute is its own name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.startswith("torchvision."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.InterpolationMode = _Enumish("InterpolationMode", (), {})  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.append(_Finder())


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return importlib.import_module(f"torchvision.{name}")
