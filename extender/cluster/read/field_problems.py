"""Find what is wrong with the fields of an object, in words for the people who wrote it.

msgspec decodes objects and stops at the first wrong field, with words of its own. These functions walk over the same
types, and find every wrong field: its path, what is expected, and its value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import inspect

from extender.core.model.message_formatting import did_you_mean

VALUE_SHOWN_MAX: Final = 120  # characters of a wrong value in a message
FIELDS_SHOWN_MAX: Final = 12  # names in one message
_TIME: Final[Any] = Annotated[datetime, msgspec.Meta(tz=True)]
_WORDS: Final[dict[type[inspect.Type], str]] = {
    inspect.BoolType: "true or false",
    inspect.FloatType: "a number",
    inspect.StrType: "text",
    inspect.NoneType: "null",
    inspect.DateTimeType: "a time such as 2026-11-20T03:12:00Z",
    inspect.StructType: "an object",
    inspect.DictType: "an object",
    inspect.ListType: "a list",
    inspect.VarTupleType: "a list",
}
_INT_MAX: Final = (2**31 - 1, 2**63 - 1)  # of the API; named only where a value is larger
_INT_MIN: Final = (-(2**31), -(2**63))
_PYTHON: Final[dict[type[inspect.Type], type]] = {
    inspect.StrType: str,
    inspect.BoolType: bool,
    inspect.NoneType: type(None),
}
# the fields that a type does not have and that are right all the same; None: any
Unread = Callable[[type], frozenset[str] | None]


class FieldProblem(msgspec.Struct, frozen=True):
    """A wrong field."""

    path: str  # such as spec.tolerations[0].key; empty for the object itself
    text: str

    def __str__(self) -> str:
        return f"{self.path or 'the object'}: {self.text}"


def shown(value: object) -> str:
    """Return a value quoted for a message, cut to `VALUE_SHOWN_MAX` characters."""
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= VALUE_SHOWN_MAX else text[: VALUE_SHOWN_MAX - 3] + "..."


def field_problems(
    value: object, kind: type[Any], unread: Unread = lambda _: None
) -> Iterator[FieldProblem]:
    """Yield what is wrong with the fields of an object; a field that is null counts as missing.

    Args:
        unread: The fields that a Struct lacks and that are right; None: any.
    """
    yield from _problems(value, _described(kind), "", unread)  # type: ignore[arg-type]  # a class is hashable


@functools.cache
def _described(kind: type[Any]) -> inspect.Type:
    """Return what msgspec knows about a type: it takes 0.7 ms to find out, and files have thousands of objects."""
    return inspect.type_info(kind)


def _problems(
    value: object, kind: inspect.Type, path: str, unread: Unread
) -> Iterator[FieldProblem]:
    match kind:
        case inspect.Metadata():
            yield from _problems(value, kind.type, path, unread)
        case inspect.UnionType():
            yield from _of_union(value, kind, path, unread)
        case inspect.StructType() if isinstance(value, Mapping):
            yield from _of_struct(value, kind, path, unread)
        case inspect.DictType() if isinstance(value, Mapping):
            for key, field_value in value.items():
                if field_value is not None:
                    below = f"[{key}]" if "." in str(key) or "/" in str(key) else f".{key}"
                    yield from _problems(field_value, kind.value_type, path + below, unread)
        case inspect.VarTupleType() | inspect.ListType() if isinstance(value, list | tuple):
            for number, item in enumerate(value):
                yield from _problems(item, kind.item_type, f"{path}[{number}]", unread)
        case _:
            if not _fits(value, kind):
                yield FieldProblem(path, _wrong(kind, value))


def _of_struct(
    value: Mapping[str, object], kind: inspect.StructType, path: str, unread: Unread
) -> Iterator[FieldProblem]:
    fields = {field.encode_name: field for field in kind.fields}
    for name, field_value in value.items():
        field_path = f"{path}.{name}" if path else str(name)
        if name in fields:
            if field_value is not None:
                yield from _problems(field_value, fields[name].type, field_path, unread)
        elif (others := unread(kind.cls)) is not None and name not in others:
            hint = did_you_mean(str(name), fields)
            if not hint:
                listed = ", ".join(sorted(fields)[:FIELDS_SHOWN_MAX])
                hint = f"; the fields are {listed}" if fields else ""
            yield FieldProblem(field_path, f"there is no such field{hint}")
    for name, field in fields.items():
        if field.required and value.get(name) is None:
            field_path = f"{path}.{name}" if path else name
            yield FieldProblem(field_path, f"is missing; it is {_expected(field.type)}")


def _of_union(
    value: object, kind: inspect.UnionType, path: str, unread: Unread
) -> Iterator[FieldProblem]:
    """Yield what is wrong by the alternative that has the form of the value, else that none has it."""
    forms: tuple[type[inspect.Type], ...] = ()
    if isinstance(value, Mapping):
        forms = (inspect.StructType, inspect.DictType)
    elif isinstance(value, list | tuple):
        forms = (inspect.VarTupleType, inspect.ListType)
    alternative = next((each for each in kind.types if isinstance(each, forms)), None)
    if alternative is not None:
        yield from _problems(value, alternative, path, unread)
    elif not _fits(value, kind):
        yield FieldProblem(path, _wrong(kind, value))


def _fits(value: object, kind: inspect.Type) -> bool:
    """Return whether a value that is no object and no list is one of a type."""
    match kind:
        case inspect.Metadata():
            return _fits(value, kind.type)
        case inspect.UnionType():
            return any(_fits(value, alternative) for alternative in kind.types)
        case inspect.IntType():
            return _is_int(value, kind)
        case inspect.LiteralType():
            return value in kind.values
        case inspect.DateTimeType():
            return _is_time(value)
        case inspect.AnyType() | inspect.RawType() | inspect.CustomType():
            return True
        case _:
            if isinstance(kind, inspect.FloatType):
                return isinstance(value, int | float) and not isinstance(value, bool)
            return type(value) is _PYTHON.get(type(kind))


def _is_int(value: object, kind: inspect.IntType) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return (kind.ge is None or kind.ge <= value) and (kind.le is None or value <= kind.le)


def _is_time(value: object) -> bool:
    try:
        msgspec.convert(value, _TIME)
    except msgspec.ValidationError:
        return False
    return True


def _wrong(kind: inspect.Type, value: object) -> str:
    quotes = isinstance(kind, inspect.StrType) and isinstance(value, bool | int | float)
    hint = "; write it in quotes" if quotes else ""  # a label or a quantity in YAML
    return f"expected {_expected(kind, value)}, found {shown(value)}{hint}"


def _expected(kind: inspect.Type, value: object = None) -> str:
    """Return what a value of a type is, in words."""
    match kind:
        case inspect.Metadata():
            return _expected(kind.type, value)
        case inspect.UnionType():
            kinds = (of for of in kind.types if not isinstance(of, inspect.NoneType))
            return " or ".join(dict.fromkeys(_expected(of, value) for of in kinds))
        case inspect.IntType():
            large = kind.le is not None and isinstance(value, int) and value > kind.le
            if kind.le is not None and (large or kind.le not in _INT_MAX):
                return f"a whole number from {kind.ge} to {kind.le}"
            low = kind.ge is not None and (kind.ge not in _INT_MIN or isinstance(value, int))
            return "a whole number" + (f" of at least {kind.ge}" if low else "")
        case inspect.LiteralType():
            return f"one of {', '.join(sorted(map(str, kind.values)))}"
        case _:
            return _WORDS.get(type(kind), "another value")
