"""Many quick rows in one test: pytest and its workers take longer for a case than most rows take."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable


def every(**values: Iterable[object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a test try every combination of values in one case, and name all that fail.

    Fixtures are made once for all of them: a test whose rows write files or replace functions needs a case for each.

    Args:
        **values: What each of these arguments of the test takes.
    """
    rows = [dict(zip(values, row, strict=True)) for row in itertools.product(*values.values())]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_rows(*args: object, **fixtures: object) -> None:
            failed = [failure for row in rows if (failure := _failure_of(test, args, fixtures, row)) is not None]
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(rows)} rows failed", failed)

        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in values]
        all_rows.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return all_rows

    return decorate


def _failure_of(
    test: Callable[..., None], args: tuple[object, ...], fixtures: dict[str, object], row: dict[str, object]
) -> Exception | None:
    try:
        test(*args, **fixtures, **row)
    except Exception as failure:
        failure.add_note("row: " + ", ".join(f"{name}={value!r}" for name, value in row.items()))
        return failure
    except BaseException as failure:  # such as pytest.fail, which ends all rows: its row is named too
        failure.add_note("row: " + ", ".join(f"{name}={value!r}" for name, value in row.items()))
        raise
    return None
