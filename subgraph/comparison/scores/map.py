"""COCO's average precision of boxes after suppression, by pycocotools; without labels, beside the
float model's."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from subgraph.errors import NotInstalled

SURE = 0.3  # the least score of a box of the float model that counts as true
MOST = 100  # boxes of a sample, as COCO counts
FORMS = (
    "map wants boxes [n, 4], scores [n] and classes [n], or rows of a box, a score and a class;"
    " else a function"
)


class Boxes(NamedTuple):
    """Of one sample: corners x1, y1, x2, y2 [n, 4], scores [n], classes [n]."""

    corners: Any
    scores: Any
    classes: Any


def score(outputs: Sequence[Mapping[str, Any]], truth: Sequence[Mapping[str, Any]]) -> float:
    """Over intersections of 0.5 to 0.95. A label is rows x1, y1, x2, y2, class; rows of a negative
    class fill it up.

    Raises:
        ValueError: the outputs have another form. NotInstalled: pycocotools is not there.
    """
    found = [_read_boxes(sample) for sample in outputs]
    true = [
        _read_labels(sample["label"]) if "label" in sample else _sure(_read_boxes(sample))
        for sample in truth
    ]
    if not any(len(one.classes) for one in true):
        return float(not any(np.any(one.scores >= SURE) for one in found))
    return _average_precision(found, true)


def _read_labels(rows: Any) -> Boxes:
    rows = np.asarray(rows, np.float64).reshape(-1, 5)
    rows = rows[rows[:, 4] >= 0]
    return Boxes(rows[:, :4], np.ones(len(rows)), rows[:, 4])


def _sure(boxes: Boxes) -> Boxes:
    return Boxes(*(part[boxes.scores >= SURE] for part in boxes))


def _read_boxes(sample: Mapping[str, Any]) -> Boxes:
    """The boxes in the outputs of one sample; those with NaN are none.

    Raises:
        ValueError: they have another form.
    """
    arrays = {name: np.squeeze(np.asarray(value, np.float64)) for name, value in sample.items()}
    rows = next((a for a in arrays.values() if a.ndim == 2 and a.shape[1] in (6, 7)), None)
    corners = next((a for a in arrays.values() if a.ndim == 2 and a.shape[1] == 4), None)
    if rows is not None:
        found = _parse_rows(rows[:, -6:])
    elif corners is not None:
        found = _parse_parts(
            corners, {name: a for name, a in arrays.items() if a.shape == corners.shape[:1]}
        )
    elif arrays and all(a.size == 0 for a in arrays.values()):
        found = Boxes(np.zeros((0, 4)), np.zeros(0), np.zeros(0))
    else:
        raise ValueError(FORMS)
    sound = (
        np.isfinite(found.corners).all(1) & np.isfinite(found.scores) & np.isfinite(found.classes)
    )
    return Boxes(*(part[sound] for part in found))


def _parse_rows(rows: Any) -> Boxes:
    """Of six columns: the box first or last, of the other two that one is the class which holds
    whole numbers."""
    box, others = (
        (rows[:, 2:], rows[:, :2])
        if _is_whole(rows[:, 0]) and _is_share(rows[:, 1])
        else (rows[:, :4], rows[:, 4:])
    )
    first_is_class = _is_whole(others[:, 0]) and not _is_whole(others[:, 1])
    return (
        Boxes(box, others[:, 1], others[:, 0])
        if first_is_class
        else Boxes(box, others[:, 0], others[:, 1])
    )


def _parse_parts(corners: Any, others: Mapping[str, Any]) -> Boxes:
    """
    Raises:
        ValueError: which are the scores, and which the classes, is not seen.
    """
    scores = next(
        (a for name, a in others.items() if "score" in name.lower() or "conf" in name.lower()), None
    )
    left = [a for a in others.values() if a is not scores]
    if scores is None:
        scores = next((a for a in left if not _is_whole(a)), None)
    classes = next((a for a in left if a is not scores and _is_whole(a)), None)
    if scores is None or classes is None:
        raise ValueError(FORMS)
    return Boxes(corners, scores, classes)


def _is_whole(values: Any) -> bool:
    return bool(np.all(values == np.round(values)))


def _is_share(values: Any) -> bool:
    return bool(np.all((values >= 0) & (values <= 1)))


def _average_precision(found: Sequence[Boxes], true: Sequence[Boxes]) -> float:
    """
    Raises:
        NotInstalled: pycocotools is not there.
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as e:
        raise NotInstalled(
            "--score map needs pycocotools",
            "pip install 'pycocotools>=2.0.10,<3'",
            code="package.not-installed",
        ) from e
    wanted = [
        {**row, "id": k, "area": row["bbox"][2] * row["bbox"][3], "iscrowd": 0}
        for k, row in enumerate(_rows(true), 1)
    ]
    classes = sorted({row["category_id"] for row in wanted})
    with contextlib.redirect_stdout(io.StringIO()):  # it prints tables
        coco = COCO()
        coco.dataset = {
            "images": [{"id": k} for k in range(len(true))],
            "annotations": wanted,
            "categories": [{"id": c} for c in classes],
        }
        coco.createIndex()
        rows = list(_rows(found))
        if not rows:
            return 0.0
        evaluated = COCOeval(coco, coco.loadRes(rows), "bbox")
        evaluated.params.maxDets = [1, 10, MOST]
        evaluated.evaluate()
        evaluated.accumulate()
        evaluated.summarize()
    return max(float(evaluated.stats[0]), 0.0)


def _rows(samples: Sequence[Boxes]) -> Iterator[dict[str, Any]]:
    """Of COCO's files: a box is its corner, width and height."""
    for k, boxes in enumerate(samples):
        for (x1, y1, x2, y2), value, kind in zip(*(part.tolist() for part in boxes), strict=True):
            yield {
                "image_id": k,
                "category_id": int(kind),
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "score": value,
            }
