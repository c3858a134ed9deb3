"""A value that a thread computes while a GPU trains."""

from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Computes a value in a thread. The thread ends with the process, so it delays neither Ctrl-C nor an error."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute, self._values, self._errors = compute, list[T](), list[Exception]()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._values.append(self._compute())
        except Exception as error:  # any: raised again where the value is needed
            self._errors.append(error)

    def wait(self) -> T:
        """The value; waits until it is computed. Raises the error of the computation."""
        self._thread.join()
        for error in self._errors:
            raise error
        return self._values[0]
