"""Read YAML and JSON files as kubectl does: several documents, plain data.

Dicts and lists are built directly from libyaml's events. This takes half the time of pyyaml's loaders, whose composer
crashes on a file that is nested very deep (docs/explanation/design-decisions.md). Duplicate keys, alias bombs and unknown tags are
refused with a line number. Plain scalars have the types that kubectl gives them: dates and `12:30` are text, `on` is
a boolean.

Note: JSON is read by msgspec, which silently uses the last of duplicate keys; only two lists of items in one are refused.
"""

from __future__ import annotations

import codecs
import math
import os
import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import yaml

from extender.core.model.errors import BadInput

DEPTH_MAX: Final = 100  # Kubernetes objects have less than half of this depth
EXPANDED_MAX: Final = 100_000  # values that aliases of one file may stand for, all together
SUFFIXES: Final = (".yaml", ".yml", ".json")
STDIN: Final = "-"

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAGS: Final = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_INT: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0[bB][01]+|0|[1-9][0-9]{0,18})")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **{f(w): True for w in ("true", "yes", "on") for f in (str.lower, str.title, str.upper)},
    **{f(w): False for w in ("false", "no", "off") for f in (str.lower, str.title, str.upper)},
}
_WORD_MAX: Final = max(map(len, _WORDS))
_NUMBER_BEGINS: Final = frozenset("+-.0123456789")
_MERGE: Final = "<<"

_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_YAML_PROBLEMS: Final = {  # part of a problem of libyaml -> what a user can look for
    "mapping values are not allowed": "a colon where no key can be; is a line above indented wrong, or a text with a colon not quoted?",
    "could not find expected ':'": "a key without a colon, above this line",
    "did not find expected ',' or ']'": "a list in [ ] that is not closed, or lacks a comma",
    "did not find expected ',' or '}'": "an object in { } that is not closed, or lacks a comma",
    "did not find expected key": "a line that is indented in another way than those above",
    "did not find expected '-' indicator": "a line of a list that is indented in another way than those above",
    "found unexpected end of stream": "a quoted text that is not closed",
    "did not find expected alphabetic": "a text that begins with * or & and is not quoted",
    "cannot start any token": "a tab, or a character with which only a quoted text begins",
}

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
_Sized = tuple[Value, int]  # a value, and the number of values in it, aliases counted in full


_TEMPLATE_HINT: Final = "; of a Helm chart give the output of `helm template`"
# A list as `kubectl get nodes,pods -A` prints it, alone in its file
_LIST_HEAD: Final = "apiVersion: v1\nitems:\n- "
_LIST_TAIL: Final = "\nkind: List\n"
_REPORT_EVERY: Final = 1 << 20  # characters

# name of the file, characters that were read, all of them
Progress = Callable[[str, int, int], None]

# The same in JSON. No text has a line break in it, so this end of an item is inside no other value.
_JSON_HEAD: Final = b'{\n    "apiVersion": "v1",\n    "items": [\n'
_JSON_END: Final = b"\n        }"
_JSON_TAIL: Final = b'\n    ],\n    "kind": "List",\n'
# bytes at the end of the file; the metadata of the list come after it
_JSON_TAIL_WITHIN: Final = 4_096
_JSON_BLOCK: Final = 1 << 20  # bytes that are read at once


def no_progress(_name: str, _done: int, _all: int) -> None:
    """Report no progress."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One document of one file, or one item of a list."""

    where: str  # for messages: file and number of the document
    value: Value


class JsonItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a list in JSON, not decoded yet."""

    where: str  # as that of a document
    text: msgspec.Raw

    @property
    def document(self) -> Document:
        """Return the item, decoded.

        Raises:
            BadInput: A number is too large for a double, or a text is not UTF-8.
        """
        try:
            return Document(where=self.where, value=msgspec.json.decode(self.text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            raise BadInput(f"{self.where}: {fault}") from fault


class _RawList(msgspec.Struct):
    kind: str
    items: tuple[msgspec.Raw, ...]


_ITEMS: Final = b'"items"'
_raw_list: Final = msgspec.json.Decoder(_RawList)
_raw_items: Final = msgspec.json.Decoder(tuple[msgspec.Raw, ...])


def files_of(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the files of paths; a directory gives its YAML and JSON files, sorted by name.

    Raises:
        BadInput: A path is empty or does not exist, or a directory has no such file.
    """
    files: list[str] = []
    for text in paths:
        if not text:
            raise BadInput("the name of a file or folder is empty; the current folder is .")
        path = Path(text)
        if text == STDIN or path.is_file() or path.is_fifo() or path.is_char_device():
            files.append(text)
        elif path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES and p.is_file())
            if not inside:
                raise BadInput(f"{text}: no {', '.join(SUFFIXES)} file in this directory")
            files += map(str, inside)
        else:
            raise BadInput(f"{text}: no such file or directory")
    return tuple(files)


def read_file(name: str) -> tuple[Document, ...]:
    """Return the documents of one file, or of standard input for `-`."""
    return read_bytes(body_of(name), "standard input" if name == STDIN else name)


def documents(name: str, progress: Progress = no_progress) -> Iterator[Document | JsonItem]:
    """Yield the documents of a file, or of standard input for `-`; of a list of kubectl its items, of which few are in memory.

    Args:
        progress: Called while a large list is read.
    """
    shown = "standard input" if name == STDIN else name
    done = yield from _items_in_blocks(name, shown, progress)
    if done is None:
        return
    body = body_of(name)
    items = _list_items(body, shown, progress)
    whole: tuple[Document, ...] = ()
    if items is None:
        whole = read_bytes(body, shown)
        first = whole[0].value if done else None  # in YAML more can come after a list in JSON
        if isinstance(first, dict) and isinstance(listed := first.get("items"), list):
            items, whole = iter(listed), whole[1:]
    del body  # of a large cluster 245 MB, which the items do not need
    for number, item in enumerate(items or (), start=1):
        if number > done:
            yield _item(shown, number, item)
    yield from whole


def _item(name: str, number: int, item: msgspec.Raw | Value) -> Document | JsonItem:
    where = f"{name}, document 1, item {number}"
    if isinstance(item, msgspec.Raw):
        return JsonItem(where=where, text=item)
    return Document(where=where, value=item)


def _items_in_blocks(
    name: str, shown: str, progress: Progress
) -> Generator[Document | JsonItem, None, int | None]:
    """Yield the items of a file that is a list as `kubectl get -o json` prints it, of which one block is in memory.

    Returns:
        How many were read where the layout is another one; None: the file was read to its end.
    """
    number = 0
    if name == STDIN or not Path(name).is_file():
        return number
    try:
        with Path(name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _JSON_TAIL_WITHIN, 0))
            tail = file.read()
            file.seek(0)
            if _JSON_TAIL not in tail or file.read(len(_JSON_HEAD)) != _JSON_HEAD:
                return number
            left, done = b"", len(_JSON_HEAD)
            while block := file.read(_JSON_BLOCK):
                left, done = left + block, done + len(block)
                end = left.rfind(_JSON_END + b",\n") + len(_JSON_END)
                if end < len(_JSON_END):
                    continue
                for item in _raw_items.decode(b"[" + left[:end] + b"]"):
                    number += 1
                    yield _item(shown, number, item)
                left = left[end + 1 :]
                progress(shown, done, size)
            rest = b'{"items": [' + left
            last = _raw_list.decode(rest)
            if _lists(rest, last.items) > 1:
                return number
    except (OSError, msgspec.MsgspecError, RecursionError):
        return number  # reading the whole file shows what is wrong
    if last.kind != "List" or (number and not last.items):  # a comma after the last item
        return number
    for item in last.items:
        number += 1
        yield _item(shown, number, item)
    return None


def _list_items(
    body: bytes, name: str, progress: Progress
) -> Iterator[msgspec.Raw] | Iterator[Value] | None:
    """Return the items of a text that is a list as kubectl prints it; None: it is something else."""
    if body.lstrip()[:1] == b"{":
        try:
            raw = _raw_list.decode(body)
        except (msgspec.MsgspecError, RecursionError):
            return None
        if raw.kind != "List":
            return None
        if _lists(body, raw.items) > 1:
            raise BadInput(f'{name}: key "items" is a duplicate; give one list of items')
        return iter(raw.items)
    if not body.startswith(_LIST_HEAD.encode()):
        return None
    text = _text_of(body, name)
    if _LIST_TAIL not in text or "\n---" in text:
        return None
    return _yaml_items(text, name, progress)


def _lists(text: bytes, items: Sequence[msgspec.Raw]) -> int:
    """Return how often the key `items` is in a text outside of some items; msgspec takes the last of several."""
    number = text.count(_ITEMS)
    return number if number < 2 else number - b"".join(items).count(_ITEMS)  # noqa: PLR2004


def _yaml_items(text: str, name: str, progress: Progress) -> Iterator[Value]:
    try:
        yield from _Reader(text, name).items(progress)
    except yaml.YAMLError as fault:
        raise BadInput(f"{name}: {_message_of(fault)}") from fault


def body_of(name: str) -> bytes:
    """Return the content of a file, or of standard input for `-`."""
    try:
        return sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError as fault:
        raise BadInput(f"{name}: {fault.strerror or fault}") from fault


def read_bytes(body: bytes, name: str) -> tuple[Document, ...]:
    """Return the documents of a file's content, without empty ones."""
    if body.lstrip()[:1] in {b"{", b"["}:
        try:
            return (Document(where=f"{name}, document 1", value=msgspec.json.decode(body)),)
        except RecursionError as fault:
            raise BadInput(f"{name}: nested too deep") from fault
        except msgspec.DecodeError as fault:
            if name.endswith(".json"):
                msg = f"{name}: {json_message(body, fault)}"
                raise BadInput(msg) from fault  # otherwise it is YAML in flow style
    try:
        return tuple(
            Document(where=f"{name}, document {number}", value=value)
            for number, value in enumerate(_Reader(_text_of(body, name), name).documents(), start=1)
            if value is not None
        )
    except yaml.YAMLError as fault:
        raise BadInput(f"{name}: {_message_of(fault)}") from fault


def _text_of(body: bytes, name: str) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        utf16 = body[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        hint = "; it is UTF-16, as PowerShell writes it: save it as UTF-8" if utf16 else ""
        raise BadInput(f"{name}: not UTF-8 at byte {fault.start}{hint}") from fault


def _message_of(fault: yaml.YAMLError) -> str:
    """Return what is wrong with a text, by the words of libyaml, which are about its own states."""
    mark = getattr(fault, "problem_mark", None)
    problem = getattr(fault, "problem", None) or str(fault).replace("\n", " ")
    text = next((words for part, words in _YAML_PROBLEMS.items() if part in problem), "")
    message = f"not valid YAML{text and f': {text}'}"
    return message if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {message}"


def json_message(body: bytes, fault: msgspec.DecodeError) -> str:
    """Return where a text is no JSON; msgspec names the byte."""
    match = _BYTE.search(str(fault))
    if match is None:
        return "not valid JSON: it ends too early"
    before = body[: int(match[1])]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    several = "trailing characters" in str(fault)
    hint = "; a file has one JSON value: several objects are the items of a List" if several else ""
    return f"line {line}, column {column}: not valid JSON{hint}"


@lru_cache(maxsize=65_536)
def plain(text: str) -> bool | int | float | str | None:
    """Return the value of an unquoted scalar.

    >>> plain("8"), plain("0.5"), plain("1Gi"), plain("on"), plain("2026-01-01"), plain("0755")
    (8, 0.5, '1Gi', True, '2026-01-01', 493)
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        digits = text.lstrip("+-")
        octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
        return int(text, 8 if octal else 0)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def _scalar(event: yaml.ScalarEvent) -> Value:
    """Return the value of a scalar; only a short text, or one that begins like a number, is not itself."""
    text: str = event.value
    if not event.implicit[0] or (len(text) > _WORD_MAX and text[0] not in _NUMBER_BEGINS):
        return text
    return plain(text)


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._name = name
        self._size = len(text)
        self._anchors: dict[str, _Sized] = {}
        self._expanded = 0

    def documents(self) -> Iterator[Value]:
        """Yield the documents.

        Raises:
            BadInput: There is a duplicate key, an alias bomb or an unknown tag.
            YAMLError: The text is not YAML.
        """
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                yield self._value(next(self._events), 0)[0]

    def items(self, progress: Progress) -> Iterator[Value]:
        """Yield the items of the only document, which is a list as kubectl prints it.

        Raises:
            YAMLError: The text is not YAML.
        """
        reported = 0
        while type(next(self._events)) is not yaml.SequenceStartEvent:
            pass
        while type(event := next(self._events)) is not yaml.SequenceEndEvent:
            yield self._value(event, 2)[0]
            read = event.start_mark.index
            if read >= reported + _REPORT_EVERY:
                reported = read
                progress(self._name, read, self._size)
        rest, _ = self._mapping(0, {"apiVersion": "v1", "items": None})
        if rest.get("kind") != "List":
            self._fail(event, "kind: expected List")
        if reported:
            progress(self._name, self._size, self._size)

    def _value(self, event: Any, depth: int) -> _Sized:  # noqa: ANN401 -- of a library without types
        """Return the value that begins with an event, which is inside `depth` others."""
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if event.tag is not None and event.tag not in _TAGS:
            self._fail(event, f"tag {event.tag} is not allowed")
        sized: _Sized
        if isinstance(event, yaml.ScalarEvent):
            sized = (_scalar(event), 1)
        elif depth >= DEPTH_MAX:
            self._fail(event, f"nested deeper than {DEPTH_MAX} levels")
        elif isinstance(event, yaml.SequenceStartEvent):
            sized = self._sequence(depth)
        else:
            sized = self._mapping(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = sized
        return sized

    def _sequence(self, depth: int) -> _Sized:
        value: list[Value] = []
        size = 1
        while type(event := next(self._events)) is not yaml.SequenceEndEvent:
            item, item_size = self._value(event, depth + 1)
            value.append(item)
            size += item_size
        return value, size

    def _mapping(
        self, depth: int, begun: dict[str, Value] | None = None
    ) -> tuple[dict[str, Value], int]:
        """Return the mapping that ends next; `begun` has the keys that were read already."""
        value = {} if begun is None else begun
        merged: list[Value] = []
        size = 1
        while type(event := next(self._events)) is not yaml.MappingEndEvent:
            if type(event) is not yaml.ScalarEvent:
                self._fail(event, f"a key must be text{_TEMPLATE_HINT}")
            if event.value in value:
                self._fail(event, f'key "{event.value}" is a duplicate')
            following = next(self._events)
            if type(following) is yaml.ScalarEvent and following.tag is following.anchor is None:
                item = _scalar(following)  # most values: a list of a large cluster has 10 million
                size += 1
            else:
                item, item_size = self._value(following, depth + 1)
                size += item_size
            if event.value == _MERGE:
                merged += item if isinstance(item, list) else [item]
            else:
                value[event.value] = item
        for other in merged:
            if not isinstance(other, dict):
                self._fail(event, "<< merges mappings only")
            value |= {key: item for key, item in other.items() if key not in value}
        return value, size

    def _alias(self, event: yaml.AliasEvent) -> _Sized:
        if event.anchor not in self._anchors:
            self._fail(event, f'alias "{event.anchor}" is not defined before')
        sized = self._anchors[event.anchor]
        self._expanded += sized[1]
        if self._expanded > EXPANDED_MAX:
            self._fail(event, f"aliases stand for more than {EXPANDED_MAX} values")
        return sized

    def _fail(self, event: yaml.Event, text: str) -> NoReturn:
        line = event.start_mark.line + 1 if event.start_mark is not None else "?"
        raise BadInput(f"{self._name}: line {line}: {text}")
