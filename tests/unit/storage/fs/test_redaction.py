from __future__ import annotations

import pickle
import traceback
from typing import Any

import pytest
from fake_object_store import FakeObjectStore
from hypothesis import given
from hypothesis import strategies as st

from dasktune.config import RunConfig
from dasktune.errors import ConfigError, StorageError, check, without_passwords
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.redaction import reading, redact, redact_errors, redacted_error, secrets_of
from dasktune.storage.fs.storage import Storage
from dasktune.tuner.result_grid import ResultGrid

SECRET = "2retnuh"[::-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ftp://me:SECRET@host/x", "ftp://***@host/x"),
        ("ftp://SECRET@host", "ftp://***@host"),
        ("ftp://me:SEC@SECRET@host/x", "ftp://***@host/x"),
        ("ftp://me:SEC/SECRET@host/x", "ftp://***@host/x"),
        ("simplecache::ftp://me:SECRET@host/x", "simplecache::ftp://***@host/x"),
        ("'s3://k:SECRET@b/x' and (gs://u:SECRET@c)", "'s3://***@b/x' and (gs://***@c)"),
        ("http://host:80/x@y", "http://host:80/x@y"),
        ("ftp://me:a'SECRET@host/x", "ftp://***@host/x"),
        ('ftp://me:a"SECRET@host', "ftp://***@host"),
        ("ftp://me:<SECRET>@host", "ftp://***@host"),
        ("ftp://m'e:SECRET@host/x", "ftp://***@host/x"),
        ("ftp://\"me:a'SECRET@host/x", "ftp://***@host/x"),
        ("'s3://b', mail='x:me@home'", "'s3://b', mail='x:me@home'"),
        ('{"url":"s3://b","mail":"x:me@home"}', '{"url":"s3://b","mail":"x:me@home"}'),
        ("ftp://me:a SECRET@host/y", "ftp://***@host/y"),
        ("ftp://me:a#SECRET@host", "ftp://***@host"),
        ("ftp://me:a SEC@SECRET@host", "ftp://***@host"),
        ("ftp://me:a'SEC/SECRET@host", "ftp://***@host"),
        ("https://host/x;token=SECRET/y", "https://host/x;token=***"),
        ("https://host/x#access_token=SECRET&b=1", "https://host/x#access_token=***&b=1"),
        ("https://h/x?a=1&X-Signature=SECRET&api_key=SECRET", "https://h/x?a=1&X-Signature=***&api_key=***"),
        ("http://h:80 and me@home.org", "http://h:80 and me@home.org"),
        ("tcp://1.2.3.4:4000, me@home.org", "tcp://1.2.3.4:4000, me@home.org"),
        ("tcp://1.2.3.4:4000 x\n  @functools", "tcp://1.2.3.4:4000 x\n  @functools"),
        ("redis://host: mail me@x.org", "redis://host: mail me@x.org"),
        ("s3://bucket/user@home/x", "s3://bucket/user@home/x"),
        ("me@home.org and tcp://1.2.3.4:80", "me@home.org and tcp://1.2.3.4:80"),
        ("", ""),
    ],
)
def test_passwords_in_urls_are_hidden(text: str, expected: str) -> None:
    assert without_passwords(text.replace("SEC", SECRET)) == expected.replace("SEC", SECRET)


@pytest.mark.parametrize(
    "options",
    [
        SECRET,
        {"password": SECRET},
        {"client_kwargs": {"deep": [{"er": (SECRET,)}, {SECRET}]}},
        {"key": SECRET.encode()},
        {"key": bytearray(SECRET.encode())},
        {"long": f"{SECRET}-and-more", "short": SECRET},
    ],
)
def test_every_value_of_the_options_is_hidden(options: Any) -> None:
    shown = redact(f"x {SECRET}-and-more y {SECRET} z", secrets_of(options))
    assert SECRET not in shown
    assert shown.startswith("x ***")


def test_a_secret_is_hidden_however_it_is_printed() -> None:
    secret = "a\"b'c\\d/e f\n\u00e4"
    secrets = secrets_of({"key": secret})
    for text in (secret, repr(secret), f"{[secret]}", '"a\\"b\'c\\\\d/e f\\n\\u00e4"'):
        assert redact(text, secrets).strip("'\"[]") == "***", text
    assert redact("x=a%22b%27c%5Cd%2Fe%20f%0A%C3%A4", secrets) == "x=***"
    assert redact("x=a%22b%27c%5Cd%2Fe+f%0A%C3%A4", secrets) == "x=***"


def test_what_is_no_secret_stays() -> None:
    secrets = secrets_of({"anon": True, "port": 9000, "none": None, "mode": "r", "empty": ""})
    assert secrets == ()
    assert secrets_of({"pin": 123456}) == ("123456",)
    assert redact("True 9000 None r", secrets) == "True 9000 None r"
    assert redact("is it there? https://x/y", secrets) == "is it there? https://x/y"


def test_signed_addresses_lose_their_signatures() -> None:
    text = f"403: 'https://b.s3/x?X-Sig={SECRET}&t=1', <gs://c/d?token={SECRET}>"
    assert redact(text) == "403: 'https://b.s3/x?***', <gs://c/d?***>"
    assert redact(f"403 for https://b/x;sas={SECRET} and https://b/y#auth={SECRET}&c") == (
        "403 for https://b/x;*** and https://b/y#***"
    )


@given(st.text(':/@?"\\ ab*', max_size=30))
def test_hiding_twice_is_hiding_once(text: str) -> None:
    once = redact(text, ["ab"])
    assert redact(once, ["ab"]) == once


class Rude(Exception):
    def __str__(self) -> str:
        raise ValueError(SECRET)


class Stubborn(Exception):
    """Prints what is in none of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.request = f"key={SECRET}"

    def __str__(self) -> str:
        return self.request


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def raised(error: BaseException, secrets: tuple[str, ...] = (SECRET,)) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return redacted_error(caught, secrets)


ERRORS = [
    ValueError(SECRET),
    KeyError(f"x{SECRET}"),
    PermissionError(13, f"no {SECRET}", f"/{SECRET}", None, f"/{SECRET}2"),
    FileNotFoundError(f"b/{SECRET}/x"),
    ValueError({"key": [SECRET]}),
    UnicodeDecodeError("ascii", SECRET.encode(), 0, 1, "no"),
    Stubborn(),
    Rude(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_tells_no_secrets(error: BaseException) -> None:
    shown = raised(error)
    assert SECRET not in printed(shown)
    assert type(error).__name__ in printed(shown)
    assert shown.__traceback__ is not None
    if isinstance(error, OSError):
        assert shown is error


def test_neither_do_those_that_it_came_from() -> None:
    def fail() -> None:
        try:
            try:
                raise Stubborn
            except Stubborn as first:
                first.add_note(SECRET) if hasattr(first, "add_note") else None
                raise KeyError(SECRET) from first
        except KeyError:
            raise OSError(5, SECRET)  # noqa: B904

    with pytest.raises(OSError, match="5") as caught:
        fail()
    shown = redacted_error(caught.value, [SECRET])
    assert shown is caught.value
    text = printed(shown)
    assert SECRET not in text
    assert "KeyError: '***'" in text
    assert "Stubborn: key=***" in text


def test_a_chain_without_end_has_one() -> None:
    error = last = ValueError(SECRET)
    for _ in range(500):
        last.__cause__ = ValueError(SECRET)
        last = last.__cause__
    assert SECRET not in printed(redacted_error(error, [SECRET]))
    circle = ValueError(SECRET)
    circle.__context__ = other = ValueError(SECRET)
    other.__context__ = circle
    assert SECRET not in printed(redacted_error(circle, [SECRET]))


def test_an_exception_without_secrets_is_left_as_it_is() -> None:
    error = ValueError("b")
    error.__context__ = KeyError("a")
    error.__suppress_context__ = True
    assert redacted_error(error, [SECRET]) is error
    assert error.__suppress_context__
    assert isinstance(error.__context__, KeyError)


class Holder:
    storage = Storage("memory://x", {"key": SECRET})

    @redact_errors
    def fail(self, error: BaseException) -> None:
        raise error


def test_a_method_that_masks_errors_tells_nothing_of_its_storage() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        Holder().fail(FileNotFoundError(SECRET))
    assert str(caught.value) == "***"
    with pytest.raises(StorageError, match=r"Stubborn: key=\*\*\*") as stand_in:
        Holder().fail(Stubborn())
    assert SECRET not in printed(stand_in.value)
    assert SECRET not in printed(pickle.loads(pickle.dumps(stand_in.value)))


@pytest.mark.usefixtures("remote")
def test_no_operation_of_a_storage_tells_secrets() -> None:
    options = {"key": SECRET, "deep": {"er": SECRET}}

    def fail(operation: str, path: str) -> None:
        raise PermissionError(f"https://{path}?sig={SECRET} by {options}")

    storage = Storage(f"fakes3://me:{SECRET}@bucket/exp", options)
    checkpoint = Checkpoint(storage.path(), storage.fs)
    FakeObjectStore.before = fail
    store = CheckpointStore(storage)
    experiment = ExperimentStore(storage)
    attempts = [
        lambda: storage.read_bytes("x"),
        lambda: storage.open_read("x"),
        lambda: storage.write_bytes("x", b""),
        lambda: storage.create("x", b""),
        lambda: storage.claim("x", b""),
        lambda: storage.exists("x"),
        lambda: storage.names("x"),
        lambda: storage.find("x"),
        lambda: storage.remove("x"),
        lambda: storage.remove_tree("x"),
        lambda: store.commit({}, trial_dir="a", index=0, incarnation=1, iteration=1, metrics={}),
        lambda: store.remove_stale("a", 1, 0),
        lambda: checkpoint.to_dict(),
        lambda: checkpoint.to_directory(),
        lambda: checkpoint.get_metadata(),
        lambda: checkpoint.set_metadata({}),
        experiment.spec,
        experiment.begin,
        lambda: experiment.create({}),
    ]
    for attempt in attempts:
        with pytest.raises((PermissionError, StorageError), match="https://") as caught:
            attempt()
        assert SECRET not in printed(caught.value)


def test_opening_a_storage_tells_no_secrets() -> None:
    with pytest.raises(ConfigError) as caught:
        Storage(f"nosuch://me:{SECRET}@x", {"key": SECRET}).path()
    assert SECRET not in printed(caught.value)


def test_reading_makes_a_storage_error_of_everything() -> None:
    words = r"cannot read x in here: KeyError\('y'\)"
    with pytest.raises(StorageError, match=words), reading("x", "here"):
        raise KeyError("y")
    with pytest.raises(StorageError, match=r"^as it is$"), reading("x", "here"):
        raise StorageError("as it is")


# What shows itself


def test_nothing_shows_the_secrets_of_a_storage() -> None:
    url = f"ftp://me:{SECRET}@host/x"
    config = RunConfig(storage_path=url, storage_options={"key": SECRET})
    assert "storage_path='ftp://***@host/x'" in repr(config)
    assert "storage_options={'key': '***'}" in repr(config)
    assert "storage_options" not in repr(RunConfig())
    grid = ResultGrid([], url)
    shown = [config, Storage(url, {"key": SECRET}), grid, grid._repr_html_(), str(Storage(url))]
    assert SECRET not in repr(shown)
    checkpoint = Checkpoint(f"me:{SECRET}@host/x", object())
    assert repr(checkpoint) == "Checkpoint(path='***@host/x', filesystem=object)"
    assert repr(Checkpoint("/a@b/c:d@e", object())).startswith("Checkpoint(path='/a@b/c:d@e'")


def test_an_argument_that_breaks_its_rule_is_shown_without_a_password() -> None:
    with pytest.raises(ConfigError) as caught:
        check(False, "storage_path", "another", f"ftp://me:{SECRET}@host")
    assert str(caught.value) == "storage_path must be another, got 'ftp://***@host'"


def test_a_specification_has_no_passwords(storage: Storage) -> None:
    store = ExperimentStore(storage)
    store.create({"at": f"s3://me:{SECRET}@b/x", "run": [{"storage_options": SECRET}]})
    assert SECRET.encode() not in storage.read_bytes("experiment.json")
    spec = store.spec()
    assert (spec["at"], spec["run"]) == ("s3://***@b/x", [{}])
