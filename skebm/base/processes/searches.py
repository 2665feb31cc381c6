"""What fits that scikit-learn runs side by side warn of: each kind once, or at the end of a search.

scikit-learn swaps the filters of warnings for each of these fits, so that Python shows a text as
often as it is issued. Which fits belong together is read from the calls between a fit and the
program: they share a search, or a :class:`joblib.Parallel`. A search that refits is the last to
call its estimator, so that what its candidates warned of is counted until then. Fits in another
process, where none of this is seen, share what they are clones of.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any, NamedTuple

from joblib import Parallel
from sklearn.exceptions import ConvergenceWarning

from skebm.base.processes.categories import SkebmWarning
from skebm.base.processes.locks import lock_of

# Where scikit-learn fits candidates, and what the call that fits one is given: its own names are
# private, and may change.
FOLDER, GIVEN = "sklearn.model_selection", ("estimator", "parameters")
# The methods of a search that fit everything, and that fit candidates, its documented hook.
FIT, CANDIDATES = "fit", "_run_search"
# Characters of a summary that name candidates.
WIDTH = 70


class Process:
    """Where fits in a worker, whose search is in another process, keep what they have shown."""


HERE = Process()
_SHOWN: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()
_TALLIES: weakref.WeakKeyDictionary[Any, Tally] = weakref.WeakKeyDictionary()


class Tally:
    """Warnings of the candidates of a search, and of its refit, by category."""

    def __init__(self) -> None:
        self.n_candidates = 0
        self.kinds: dict[type[SkebmWarning], Counter[Any]] = {}
        self.texts: dict[Any, str] = {}  # the first of a kind
        self.candidates: dict[type[SkebmWarning], dict[str, None]] = {}  # in their order

    def add(
        self, kind: Any, category: type[SkebmWarning], text: str, candidate: str | None
    ) -> None:
        """Count a warning of a candidate, or of the refit, which has no name."""
        self.kinds.setdefault(category, Counter())[kind] += 1
        self.texts.setdefault(kind, text)
        names = self.candidates.setdefault(category, {})
        if candidate is not None:
            names[candidate] = None

    def summaries(self) -> list[tuple[type[SkebmWarning], str]]:
        """A text for each category: how many candidates and which, and what most fits said."""
        texts = []
        for category, kinds in self.kinds.items():
            names = list(self.candidates[category])
            text = self.texts[kinds.most_common(1)[0][0]]
            if names:
                of_all = f" of {self.n_candidates}" if self.n_candidates else ""
                text = (
                    f"Fits of {len(names)}{of_all} candidates warned ({first_of(names)}), most of "
                    f"them:\n{' '.join(text.splitlines())}"
                )
            texts.append((category, text))
        return texts


class Share(NamedTuple):
    """What a fit has in common with the fits beside it.

    Attributes
    ----------
    owner : object
        Lives as long as these fits.
    of : hashable
        Discriminates between fits with the same owner.
    search : object or None
        A search that refits, if warnings are counted until then.
    candidate : str or None
        Parameters of the candidate that is fitted; None for the refit.
    n_candidates : int
        Number of candidates; 0 if it is not known.
    """

    owner: Any
    of: Any = None
    search: Any = None
    candidate: str | None = None
    n_candidates: int = 0

    def is_first(self, kind: Any, category: type[SkebmWarning], text: str) -> bool:
        """Whether a warning is to be shown: it is not counted, and the first one of its kind."""
        with lock_of(self.owner):
            if self.search is not None and issubclass(category, ConvergenceWarning):
                tally = _TALLIES.setdefault(self.search, Tally())
                tally.n_candidates = self.n_candidates or tally.n_candidates
                tally.add(kind, category, text, self.candidate)
                return False
            shown = _SHOWN.setdefault(self.owner, set())
            is_new = (self.of, kind) not in shown
            shown.add((self.of, kind))
            return is_new


def share_around(calls: Iterable[FrameType]) -> Share | None:
    """What a fit shares, given the calls around it from the innermost; None if it is alone."""
    parallel, fit, is_candidate = None, None, False
    for call in calls:
        if is_parallel(call):
            parallel = call.f_locals["self"]
            continue
        search = _search_of(call)
        if search is None:
            fit = fit or _candidate_of(call)
        elif call.f_code.co_name == CANDIDATES:
            is_candidate = True
        elif call.f_code.co_name == FIT and search.refit:
            if not is_candidate:
                return Share(search, search=search)
            return Share(search, None, search, _name(fit), _number_of_candidates(fit))
    if parallel is not None:
        return Share(parallel)
    return None if fit is None else Share(HERE, _template(fit))


def summaries_after(calls: Sequence[FrameType]) -> list[tuple[type[SkebmWarning], str]]:
    """Summaries of a search, if the fit among these calls is its refit; they are given once."""
    share = share_around(calls)
    if share is None or share.search is None or share.candidate is not None:
        return []
    with lock_of(share.search):
        _SHOWN.pop(share.search, None)
        tally = _TALLIES.pop(share.search, None)
    return [] if tally is None else tally.summaries()


def calls_around_search(calls: Sequence[FrameType]) -> Sequence[FrameType]:
    """The calls around the innermost search among these."""
    searches = [_search_of(call) for call in calls]
    innermost = next((one for one in searches if one is not None), None)
    if innermost is None:
        return []
    last = max(k for k, one in enumerate(searches) if one is innermost)  # fit may call another fit
    return calls[last + 1 :]


def is_parallel(call: FrameType) -> bool:
    """Whether this is a method of a `Parallel` that is not one of skebm."""
    if call.f_globals.get("__name__") != Parallel.__module__:
        return False
    owner = call.f_locals.get("self")
    return isinstance(owner, Parallel) and not type(owner).__module__.startswith("skebm")


def _search_of(call: FrameType) -> Any:
    """The search of which this is one of both methods; None for other calls."""
    owner = call.f_locals.get("self") if call.f_code.co_name in (FIT, CANDIDATES) else None
    return owner if hasattr(type(owner), CANDIDATES) else None


def _candidate_of(call: FrameType) -> dict[str, Any] | None:
    """What a function of scikit-learn that fits a candidate was given; None for other calls."""
    if not str(call.f_globals.get("__name__")).startswith(FOLDER):
        return None
    given = call.f_locals
    return given if all(name in given for name in GIVEN) else None


def _name(fit: dict[str, Any] | None) -> str:
    given = (fit or {}).get("parameters") or {}
    return ", ".join(f"{name}={value!r}" for name, value in given.items()) or "unnamed"


def _number_of_candidates(fit: dict[str, Any] | None) -> int:
    progress = (fit or {}).get("candidate_progress")
    return progress[1] if progress else 0


def _template(fit: dict[str, Any]) -> str:
    """What all candidates of a search have in common."""
    names = sorted(fit.get("parameters") or {})
    rest = fit["estimator"].get_params(deep=False)
    others = {name: value for name, value in rest.items() if name not in names}
    return f"{type(fit['estimator'])} {names} {_number_of_candidates(fit)} {others}"


def first_of(names: Sequence[str], width: int = WIDTH) -> str:
    """The first names, separated by semicolons, and how many more there are.

    >>> first_of(["n_components=4", "n_components=8"], width=20)
    'n_components=4 and 1 more'
    """
    shown = [names[0][:width]]
    for name in names[1:]:
        if len("; ".join([*shown, name])) > width:
            break
        shown.append(name)
    more = len(names) - len(shown)
    return "; ".join(shown) + (f" and {more} more" if more else "")
