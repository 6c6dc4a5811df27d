"""A stand-in for the provider: `uvicorn examples.exchange_rates.provider:app` runs it.

It gives rates for three currencies, refuses every fourth request with 429 and `Retry-After`, and
tells what it was asked.
"""

import time
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

RATES = {"USD": 1.1, "GBP": 0.85, "JPY": 160}
REFUSED_EVERY = 4
RETRY_AFTER_S = 2

asked: list[dict[str, Any]] = []


async def rate(request: Request) -> JSONResponse:
    """GET /rates/{currency}: how much of it a euro is; 504 if the caller's deadline is over."""
    answer = _answer(request)
    told = {name: request.headers.get(name) for name in ("x-deadline-ms", "x-timeout-ms")}
    asked.append({"path": request.url.path, "status": answer.status_code, **told})
    return answer


def _answer(request: Request) -> JSONResponse:
    if int(request.headers.get("x-deadline-ms", 2**62)) <= time.time_ns() // 1_000_000:
        return JSONResponse({"error": "too late"}, 504)
    if (len(asked) + 1) % REFUSED_EVERY == 0:
        return JSONResponse({"error": "too many requests"}, 429,
                            headers={"Retry-After": str(RETRY_AFTER_S)})
    found = RATES.get(request.path_params["currency"])
    if found is None:
        return JSONResponse({"error": "no such currency"}, 404)
    return JSONResponse({"rate": found})


async def requests(request: Request) -> JSONResponse:
    """GET /requests: what was asked so far, and what the answer was, in order."""
    return JSONResponse(asked)


app = Starlette(routes=[Route("/rates/{currency}", rate), Route("/requests", requests)])
