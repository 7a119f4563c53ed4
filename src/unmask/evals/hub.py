"""The hub's data without its chatter: where it is out of reach, only what an earlier download left is looked at."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

PATIENCE_S = 5.0


@contextmanager
def asked_once() -> Generator[bool]:
    """Loads inside are silent, and fail at once where the hub does not answer; yields whether it does."""
    from datasets import config
    from huggingface_hub import constants

    there = constants.HF_HUB_OFFLINE or _answers()
    loggers = [logging.getLogger(name) for name in ("huggingface_hub", "datasets")]
    levels = [logger.level for logger in loggers]
    before = (constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE)
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        if not there:
            constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
        yield there
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@cache
def _answers() -> bool:
    """Whatever the answer is. Asked once a process, since a firewall that drops it all costs the whole patience."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE_S)
    except Exception:  # each release of the hub's package has errors of its own for this
        return False
    return True
