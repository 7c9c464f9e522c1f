"""One question by HTTP to an address that may be a stranger's, without keeping the connection.

Invariant: the question is over by its deadline, whoever answers and however slowly: a look-up of the name that hangs
and bytes that drip count too.  So it runs in a thread of its own, which is left behind.
"""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from concurrent.futures import Future

PROXIED = urllib.request.build_opener()
"""Asks as the environment says (HTTP_PROXY)."""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks the address itself."""


def read_within(
    question: str | urllib.request.Request,
    seconds: float,
    *,
    max_bytes: int,
    opener: urllib.request.OpenerDirector = PROXIED,
) -> bytes:
    """Return the whole answer, or its first ``max_bytes``.

    Raises: HTTPError, closed, where it isn't 200; OSError, TimeoutError too; ValueError for what is no HTTP.
    """
    answer: Future[bytes] = Future()

    def ask() -> None:
        try:
            with opener.open(question, timeout=seconds) as response:
                answer.set_result(response.read(max_bytes))
        except http.client.HTTPException as error:
            answer.set_exception(ValueError(f"what answers there speaks no HTTP: {type(error).__name__}"))
        except urllib.error.HTTPError as error:
            error.close()
            answer.set_exception(error)
        except (OSError, ValueError) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="answer", daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError as error:
        raise TimeoutError(f"no whole answer within {seconds:.1f} s") from error
