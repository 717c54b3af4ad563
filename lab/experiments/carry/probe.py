"""Linear probes in closed form, cross-validated, beside the same with shuffled labels: can a number be read off a state?"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sinkscope.errors import ReadingError

Matrix = npt.NDArray[np.float64]
RIDGES = tuple(10.0**power for power in range(-3, 5))  # chosen inside each training fold


@dataclass(frozen=True)
class Probe:
    """How well a label is predicted on groups that the probe has not seen."""

    r2: float  # share of the variance explained; 0 or less means nothing
    accuracy: float | None  # of a yes-or-no label: balanced accuracy at the midpoint, chance is 0.5
    shuffled_r2: float  # mean over shuffles of the labels within groups: what the method finds where nothing is
    shuffled_high: float  # 97.5 % point over the shuffles
    rows: int
    groups: int
    predicted: Matrix = field(repr=False, compare=False)  # [row], of rows whose group the probe has not seen

    @property
    def found(self) -> bool:
        """Whether the label is read better than from shuffled labels."""
        return self.r2 > max(self.shuffled_high, 0.0)


def probe(
    states: Matrix, labels: Matrix, groups: npt.NDArray[np.int64], folds: int = 5, shuffles: int = 20, seed: int = 0
) -> Probe:
    """Ridge regression from states [row, width] to labels [row]; whole groups (problems) are held out together.

    Rows of one generation are alike, so that a split by rows would let a probe recognise the problem instead of reading
    the label. Shuffled labels change places within their group only: what differs between groups stays.
    """
    names = _checked(states, labels, groups, folds)
    rng = np.random.default_rng(seed)
    fold_of = dict(zip(names.tolist(), (rng.permutation(len(names)) % folds).tolist(), strict=True))
    fold = np.array([fold_of[group] for group in groups.tolist()])
    prepared = [_Fold(states[fold != held], states[fold == held], fold, held) for held in range(folds)]
    predicted = _predict(prepared, labels)
    empty = [_r2(shuffled, _predict(prepared, shuffled)) for shuffled in _shuffles(labels, groups, shuffles, rng)]
    return Probe(
        r2=_r2(labels, predicted),
        accuracy=_balanced(labels, predicted) if set(np.unique(labels)) == {0.0, 1.0} else None,
        shuffled_r2=float(np.mean(empty)),
        shuffled_high=float(np.quantile(empty, 0.975)),
        rows=len(labels),
        groups=len(names),
        predicted=predicted,
    )


def drawn_r2(
    labels: Matrix, predicted: Matrix, groups: npt.NDArray[np.int64], draws: int = 2000, seed: int = 0
) -> Matrix:
    """r2 of each of `draws` samples of whole groups, with replacement; the same seed draws the same groups."""
    names, place = np.unique(groups, return_inverse=True)

    def per_group(values: Matrix) -> Matrix:
        summed: Matrix = np.bincount(place, values, len(names)).astype(np.float64)
        return summed

    weight = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), draws)
    count, total, squares, wrong = (
        weight @ per_group(values) for values in (np.ones(len(labels)), labels, labels**2, (labels - predicted) ** 2)
    )
    spread = squares - total**2 / count
    found: Matrix = 1 - np.divide(wrong, spread, out=np.full(draws, np.nan), where=spread > 0)
    return found


class _Fold:
    """One split, with the decomposition that every ridge and every labelling share."""

    def __init__(self, known: Matrix, held: Matrix, fold: npt.NDArray[np.int64], number: int) -> None:
        self.train, self.test = fold != number, fold == number
        self.mean = known.mean(0)
        self.left, self.values, self.right = np.linalg.svd(known - self.mean, full_matrices=False)
        self.held = (held - self.mean) @ self.right.T
        self.shrinks = [self.values**2 / (self.values**2 + ridge) for ridge in RIDGES]
        # How far a row's own label decides its prediction; the same for every labelling.
        self.leverages = [1 / len(known) + self.left**2 @ shrink for shrink in self.shrinks]

    def predict(self, labels: Matrix) -> Matrix:
        """Labels of the held-out rows, with the ridge whose leave-one-out error on the training rows is smallest."""
        known = labels[self.train]
        centre = known.mean()
        projected = self.left.T @ (known - centre)
        best, error = None, np.inf
        for ridge, shrink, leverage in zip(RIDGES, self.shrinks, self.leverages, strict=True):
            residual = known - centre - self.left @ (shrink * projected)
            loss = float(np.mean((residual / np.clip(1 - leverage, 1e-6, None)) ** 2))
            if loss < error:
                best, error = self.values / (self.values**2 + ridge) * projected, loss
        assert best is not None
        found: Matrix = self.held @ best + centre
        return found


def _predict(folds: list[_Fold], labels: Matrix) -> Matrix:
    predicted = np.empty(len(labels))
    for fold in folds:
        predicted[fold.test] = fold.predict(labels)
    return predicted


def _shuffles(labels: Matrix, groups: npt.NDArray[np.int64], count: int, rng: np.random.Generator) -> list[Matrix]:
    made = []
    for _ in range(count):
        shuffled = labels.copy()
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            shuffled[rows] = labels[rng.permutation(rows)]
        made.append(shuffled)
    return made


def _r2(labels: Matrix, predicted: Matrix) -> float:
    return float(1 - np.sum((labels - predicted) ** 2) / np.sum((labels - labels.mean()) ** 2))


def _balanced(labels: Matrix, predicted: Matrix) -> float:
    """Mean of the hit rates of both classes, cut at the middle between the classes' mean predictions."""
    yes = labels == 1
    cut = (predicted[yes].mean() + predicted[~yes].mean()) / 2
    return float((np.mean(predicted[yes] > cut) + np.mean(predicted[~yes] <= cut)) / 2)


def _checked(states: Matrix, labels: Matrix, groups: npt.NDArray[np.int64], folds: int) -> npt.NDArray[np.int64]:
    """The names of the groups; refuses what cannot be split or has nothing to predict."""
    if states.ndim != 2 or labels.shape != (len(states),) or groups.shape != (len(states),):
        raise ReadingError(
            f"Expected states [row, width] with a label and a group per row, got {states.shape}, {labels.shape} and "
            f"{groups.shape}."
        )
    names = np.unique(groups)
    if folds < 2 or len(names) < folds:
        raise ReadingError(
            f"Expected at least {max(folds, 2)} groups for {folds} folds, got {len(names)}; take fewer folds."
        )
    if not np.isfinite(states).all() or not np.isfinite(labels).all() or np.ptp(labels) == 0:
        raise ReadingError(
            "Expected finite states, and labels that are finite and not all the same; choose other rows."
        )
    return names
