"""The words for a step of a method, for people who follow a run or read its record."""

from __future__ import annotations

_WORDS = {
    "opening": "classes of each client",
    "statistics": "sums of statistics",
    "lifted_statistics": "sums of lifted statistics",
    "layer_statistics": "sums of statistics of a layer",
    "head_statistics": "sums of statistics of the head",
    "residuals": "residuals of the softmax head",
    "pseudo_counts": "evidence of the class prior",
    "left_out": "models on left-out samples",
    "pool": "weights of the pool",
    "update": "local training",
    "judge": "validation",
    "ScoreTask": "personal models and scores",
    "deliver": "delivery",
}


def step_words(step: str) -> str:
    """Return a step in words; the name of a step of somebody's own method is read as words.

    Examples
    --------
    >>> step_words("update"), step_words("_group_means")
    ('local training', 'group means')
    """
    return _WORDS.get(step) or step.strip("_").replace("_", " ")
