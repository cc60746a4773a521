"""Objects that can be copied and are not pickled, because a file or another process would get what is nobody else's."""

from __future__ import annotations

import copy
from typing import Any, Self, SupportsIndex


class NotPickled:
    """A base of what is copied like any object, and says in one sentence why it is not pickled.

    ``torch.save``, ``multiprocessing`` and ``joblib`` pickle too.
    """

    def why_not_pickled(self) -> str:
        """Return why, and what to do instead; empty where nothing speaks against it."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Return what a pickle holds.

        Raises:
            TypeError: If it is not to be pickled.
        """
        if why := self.why_not_pickled():
            raise TypeError(why)
        return super().__reduce_ex__(protocol)

    def __copy__(self) -> Self:
        """Return an object with the same attributes."""
        own = type(self).__new__(type(self))
        vars(own).update(vars(self))
        return own

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return an object with copies of all attributes."""
        own = type(self).__new__(type(self))
        memo[id(self)] = own
        vars(own).update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        return own
