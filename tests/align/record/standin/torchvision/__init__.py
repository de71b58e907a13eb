"""A torchvision that can be imported and does nothing: vLLM's Qwen3.5 module imports it for its vision part."""

import importlib.abc
import importlib.machinery
import sys
import types


class _Name(type):
    """A class of which every attribute exists."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Anything(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name.startswith("torchvision.") else None

    def create_module(self, spec):
        return _Anything(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(_Finder())
__version__ = "0.0.0"
