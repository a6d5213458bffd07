# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Private names of other packages: what tfdear expects of them, and how it wraps them.

[Note: Seams]
A few functions of Keras and TensorFlow know only the strategies that TensorFlow ships, and are
wrapped in a job of several ranks. A release that renames one, or changes its parameters, must be
found before the ranks meet, and must not leave half of the wrappers behind. So every such name is
an entry of a `Registry` (`_tf_private`, `_keras_private`), with the signature of the tested
versions; `verify` compares all of them, and `install` wraps nothing unless all fit. With one
process only the building of models is wrapped.
"""

import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

# A function that is wrapped; its wrapper gets it as the first argument.
Original: TypeAlias = Callable[..., Any]
_Wrapper = TypeVar("_Wrapper", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, eq=False)
class PrivateName:
    """A name that tfdear uses although its package does not document it."""

    module: str
    path: str  # "function", "Class", "Class.method".
    # As `inspect.signature` prints it, without annotations. None: it only has to be there.
    signature: str | None = None
    # An attribute that the function gives to objects, if that is what tfdear uses.
    sets: str | None = None

    def __str__(self) -> str:
        return f"{self.module}.{self.path}"

    def owner(self) -> tuple[Any, str]:
        """The module or class that holds it, and its name there."""
        *classes, last = self.path.split(".")
        found: Any = importlib.import_module(self.module)
        for name in classes:
            found = getattr(found, name)
        return found, last

    def get(self) -> Any:
        """The object with this name."""
        return getattr(*self.owner())

    def fault(self) -> str | None:
        """How the object differs from the tested versions, or None if it does not."""
        try:
            found = self.get()
        except (ImportError, AttributeError) as error:
            expected = f", expected {self.signature}" if self.signature else ""
            return f"{self}{expected}: it is not there ({error})"
        if self.signature and (signature := _signature(found)) != self.signature:
            return f"{self}: expected {self.signature}, found {signature}"
        if self.sets and self.sets not in inspect.unwrap(found).__code__.co_names:
            return f"{self}: expected that it sets `{self.sets}`, found that it does not"
        return None


def _signature(function: Callable[..., Any]) -> str:
    """The parameters and their defaults, without annotations."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


@dataclasses.dataclass(eq=False)
class Registry:
    """All private names of one package."""

    package: str
    requirement: str  # The supported versions, for pip.
    tested: Sequence[str]  # The versions that the tests run with, oldest first.
    names: list[PrivateName] = dataclasses.field(default_factory=list)

    def name(
        self, module: str, path: str, signature: str | None = None, sets: str | None = None
    ) -> PrivateName:
        """Adds a `PrivateName`; arguments as there."""
        self.names.append(PrivateName(module, path, signature, sets))
        return self.names[-1]

    def verify(self) -> None:
        """Raises an ImportError with all names that the installed package lacks or has changed."""
        faults = [fault for fault in (name.fault() for name in self.names) if fault]
        if faults:
            raise ImportError(self._message(faults))

    def _message(self, faults: Sequence[str]) -> str:
        try:
            installed = importlib.metadata.version(self.package.lower())
        except importlib.metadata.PackageNotFoundError:
            installed = "of unknown version"
        found = "".join(f"\n  {fault}" for fault in faults)
        return (
            f"tfdear does not fit the installed {self.package} {installed}, whose internal "
            f"functions it builds on:{found}\n"
            f"tfdear supports {self.requirement} (tested with {' and '.join(self.tested)}). "
            "Install a supported version:\n"
            f"  {sys.executable} -m pip install '{self.requirement}'"
        )


class Seams:
    """Functions that replace private ones, collected by a decorator."""

    def __init__(self) -> None:
        self.wrappers: list[tuple[PrivateName, Callable[..., Any]]] = []

    def wrap(self, *names: PrivateName) -> Callable[[_Wrapper], _Wrapper]:
        """Decorates a function to call instead of the names; it gets the original first."""

        def decorate(wrapper: _Wrapper) -> _Wrapper:
            self.wrappers.extend((name, wrapper) for name in names)
            return wrapper

        return decorate


_MARK = "_tfdear_wraps"


def install(*collections: Seams) -> None:
    """Installs the wrappers; functions that are wrapped already stay as they are."""
    wrappers = [
        (*name.owner(), wrapper)
        for seams in collections
        for name, wrapper in seams.wrappers
        if not hasattr(name.get(), _MARK)
    ]
    # Nothing is changed before everything was found. Of two wrappers of a name, the later one calls
    # the earlier one.
    for owner, attribute, wrapper in wrappers:
        setattr(owner, attribute, _wrapped(getattr(owner, attribute), wrapper))


def replace(owner: Any, attribute: str, wrapper: Callable[..., Any]) -> None:
    """Wraps a function that only a running program knows, unless it is wrapped already."""
    if not hasattr(original := getattr(owner, attribute), _MARK):
        setattr(owner, attribute, _wrapped(original, wrapper))


def _wrapped(original: Original, wrapper: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(call, _MARK, original)
    return call
