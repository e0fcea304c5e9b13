"""Budget: how many rows of prompts a step carries beside rows that decode, by what is left until their next token."""

from __future__ import annotations

from collections.abc import Callable

from engine.step_time import StepTime, size_of

SELDOM = 400  # one gap of so many may be longer than the budget knowingly: with 7 in 1,000 by chance, less than 1 in 100 is
CREDIT = 4  # such gaps that may come one after another: the first steps are to learn from

Load = Callable[[int], tuple[int, float]]


class Budget:
    """Decides for one step after another.  ``load(n)``: rows and keys of a step with n rows of prompts.

    Of the sizes that fit the time left that one is taken which reads most of the prompts a millisecond: a step of nine rows may
    take so much longer than one of eight that it is not worth its row.
    """

    def __init__(self, step_time: StepTime):
        self._time = step_time
        self._credit = float(CREDIT)  # gaps that may be longer than the budget

    def rows(self, decode: int, most: int, load: Load, ns: float, budget_ns: float) -> int:
        """Rows of prompts, at most ``most``, beside ``decode`` decoding ones, in a step for which ``ns`` of
        ``budget_ns`` are left."""
        if not self._time.known(decode):
            return 0  # what decoding alone takes is to be known first
        self._credit = min(CREDIT, self._credit + 1 / SELDOM)
        best, rate = 0, 0.0
        for low, high in _sizes(decode, most):
            count, takes = self._largest(low, high, load, ns)
            if count and count >= rate * takes:
                best, rate = count, count / max(1.0, takes)
            if count < high and self._time.known(decode + low):
                break  # larger ones take longer
        if best == 0 and self._time.estimate(*load(0)) > budget_ns:  # nobody can keep it
            return min(most, size_of(decode + 1) - decode)
        if self._credit >= 1 and (more := self._try(decode, best, most, load, ns)):
            self._credit -= 1
            return more
        return best

    def alone(self, most: int, load: Load, ns: float) -> int:
        """Rows of the largest step of prompts alone, up to ``most``, that takes no longer than ``ns``; 0 if none does."""
        return max(self._largest(low, high, load, ns)[0] for low, high in _sizes(0, most))

    def _largest(self, low: int, high: int, load: Load, ns: float) -> tuple[int, float]:
        """(rows, ns that they take) of the largest step of one size that takes no longer than ``ns``; (0, 0) if none does."""
        if (most := self._time.estimate(*load(high))) <= ns:
            return high, most
        if low == high or (least := self._time.estimate(*load(low))) > ns:
            return 0, 0.0
        count = low + int((high - low) * (ns - least) / (most - least))  # time goes all but straight up with rows
        while (takes := self._time.estimate(*load(count))) > ns:
            count -= 1
        return count, takes

    def _try(self, decode: int, best: int, most: int, load: Load, ns: float) -> int:
        """A size that was not measured, or not of late (one wrong measurement would keep it out for ever): of a larger one its
        smallest step, if that may fit for all that is known, or the next smaller one, which fits.  Where nothing fits, whole
        steps read the prompts slowly."""
        for low, _ in _sizes(decode, most):
            larger = low > best and (best == 0 or size_of(decode + low) > size_of(decode + best))
            if larger and not self._time.fresh(decode + low) and self._time.least(*load(low)) <= ns:
                return low
        if best == 0:
            return most
        below = size_of(decode + best) // 2 - decode
        return below if below > 0 and not self._time.known(decode + below) else 0


def _sizes(decode: int, most: int) -> list[tuple[int, int]]:
    """(fewest, most) rows of prompts of each size of steps."""
    out, low = [], 1
    while low <= most:
        high = min(most, size_of(decode + low) - decode)
        out.append((low, high))
        low = high + 1
    return out
