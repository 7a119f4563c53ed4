"""lm-eval, datasets and the hub without their chatter, and without waiting for a hub that is out of reach."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr
from functools import cache

PATIENCE_S = 5.0


@contextmanager
def quiet() -> Generator[None]:
    """Silence bars, messages and warnings, which are about other command lines. Errors come as exceptions."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def asked_once() -> Generator[bool]:
    """Silence loads inside. If the hub does not answer, they use earlier downloads alone, and False is yielded."""
    from datasets import config
    from huggingface_hub import constants

    before = (constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE)
    there = constants.HF_HUB_OFFLINE or answers(constants.ENDPOINT)
    try:
        if not there:
            constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
        with quiet():
            yield there
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before


@cache
def answers(endpoint: str) -> bool:
    """Whether the hub gives any answer. Cached, because behind some firewalls the question takes the whole wait."""
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=PATIENCE_S)
    except Exception:  # each release of the hub's package has errors of its own for this
        return False
    return True
