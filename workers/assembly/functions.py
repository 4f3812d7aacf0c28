"""The functions over records that the setting `functions` names, imported once they are asked for."""

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module

from logstore.errors import InvalidInput
from logstore.records.functions import RecordFunction


class NamedFunctions:
    """The `RecordFunctions` of a process: each as `module:function`, known by the name of the function."""

    def __init__(self, references: str) -> None:
        """Take them, separated by commas, as the settings have checked them."""
        self._references = references

    @cached_property
    def _functions(self) -> Mapping[str, RecordFunction]:
        return dict(_loaded(one) for one in filter(None, self._references.split(",")))

    def load(self) -> None:
        """Import them all, as a worker does before it serves.

        Raises:
            InvalidInput: A module cannot be imported, or has no such function.
        """
        _ = self._functions

    def named(self, name: str) -> RecordFunction:
        """See `RecordFunctions.named`; raises as `load`, too."""
        if name not in self._functions:
            known = ", ".join(sorted(self._functions))
            expected = f"one of {known}" if known else "one that the workers' setting functions names; it names none"
            raise InvalidInput("function", expected=expected, found=name)
        return self._functions[name]


def _loaded(reference: str) -> tuple[str, RecordFunction]:
    module, _, name = reference.partition(":")
    try:
        found = getattr(import_module(module), name, None)
    except (Exception, SystemExit) as error:  # a script that calls `sys.exit` would otherwise end the worker
        what = f"{reference} ({type(error).__name__}: {error})"
        raise InvalidInput("functions", expected="modules that can be imported", found=what) from error
    if not callable(found):
        raise InvalidInput("functions", expected=f"a function {name} in the module {module}", found=reference)
    return name, found
