"""Proxy in front of disaggregated vLLM: prompts to the prefill instances, answers from the decode instances.

Written by Tonnage beside the commands that start the instances. Needs aiohttp, which every vLLM image has:

    python3 pd_proxy.py --port 8000 --prefill http://a:8100 --decode http://a:8104 http://a:8108

A request goes to the next prefill instance for one token with ``kv_transfer_params.do_remote_decode``; what comes back
in ``kv_transfer_params`` goes with the whole request to the next decode instance, whose answer is passed on as it
comes. The protocol is that of NixlConnector (docs/features/nixl_connector_usage.md). /health answers 200 when every
instance does; other paths go to a decode instance.
"""

import argparse
import asyncio
import itertools
import logging
import uuid
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

LOG = logging.getLogger("pd_proxy")
HEALTH_TIMEOUT_S = 5.0
MAX_BODY = 512 * 2**20
ASK_FOR_CACHE: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
HOP_BY_HOP = {"connection", "content-encoding", "content-length", "keep-alive", "transfer-encoding"}


class Proxy:
    """Deals requests out in turn."""

    def __init__(self, prefill: list[str], decode: list[str]) -> None:
        self.instances = [*prefill, *decode]
        self.prefill = itertools.cycle(prefill)
        self.decode = itertools.cycle(decode)
        self.session: ClientSession | None = None

    async def lifetime(self, _: web.Application) -> Any:
        """Keep one client session, without a limit on connections, as long as the server runs."""
        async with ClientSession(timeout=ClientTimeout(total=None), connector=TCPConnector(limit=0)) as session:
            self.session = session
            yield

    def client(self) -> ClientSession:
        """The session of the running server."""
        if self.session is None:
            raise web.HTTPServiceUnavailable(text="the proxy is starting")
        return self.session

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Prefill, then decode."""
        body = await request.json()
        headers = {"X-Request-Id": request.headers.get("X-Request-Id") or str(uuid.uuid4())}
        if "Authorization" in request.headers:
            headers["Authorization"] = request.headers["Authorization"]
        first = {**body, "stream": False, "max_tokens": 1, "kv_transfer_params": ASK_FOR_CACHE}
        if "max_completion_tokens" in first:
            first["max_completion_tokens"] = 1
        for name in ("stream_options", "min_tokens", "min_completion_tokens"):
            first.pop(name, None)
        async with self.client().post(next(self.prefill) + request.path, json=first, headers=headers) as answer:
            if answer.status != 200:
                return await passed_on(request, answer)
            found = (await answer.json()).get("kv_transfer_params")
        if found:
            body["kv_transfer_params"] = found
        async with self.client().post(next(self.decode) + request.path, json=body, headers=headers) as answer:
            return await passed_on(request, answer)

    async def other(self, request: web.Request) -> web.StreamResponse:
        """Anything else is a decode instance's to answer."""
        url = next(self.decode) + request.path_qs
        async with self.client().request(request.method, url, data=await request.read()) as answer:
            return await passed_on(request, answer)

    async def health(self, _: web.Request) -> web.Response:
        """200 when every instance is healthy, else 503 with those that are not."""
        states = await asyncio.gather(*(self.healthy(url) for url in self.instances))
        missing = [url for url, ok in zip(self.instances, states, strict=True) if not ok]
        return web.json_response({"missing": missing}, status=503 if missing else 200)

    async def healthy(self, url: str) -> bool:
        """Whether the instance at ``url`` says that it is healthy."""
        try:
            async with self.client().get(url + "/health", timeout=ClientTimeout(total=HEALTH_TIMEOUT_S)) as answer:
                return answer.status == 200
        except (ClientError, TimeoutError):
            return False


async def passed_on(request: web.Request, answer: Any) -> web.StreamResponse:
    """Pass ``answer`` on chunk by chunk."""
    headers = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    async for chunk in answer.content.iter_any():
        await response.write(chunk)
    await response.write_eof()
    return response


@web.middleware
async def unreachable_is_502(request: web.Request, handler: Any) -> web.StreamResponse:
    """An instance that cannot be reached is a 502 with its name, not a stack trace."""
    try:
        return await handler(request)
    except ClientError as error:
        LOG.warning("%s %s: %s", request.method, request.path, error)
        return web.json_response({"error": {"message": str(error), "type": "bad_gateway"}}, status=502)


def application(prefill: list[str], decode: list[str]) -> web.Application:
    """The web application."""
    proxy = Proxy(prefill, decode)
    app = web.Application(client_max_size=MAX_BODY, middlewares=[unreachable_is_502])
    app.cleanup_ctx.append(proxy.lifetime)
    app.router.add_post("/v1/completions", proxy.complete)
    app.router.add_post("/v1/chat/completions", proxy.complete)
    app.router.add_get("/health", proxy.health)
    app.router.add_route("*", "/{path:.*}", proxy.other)
    return app


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description="Proxy in front of disaggregated vLLM")
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--prefill", nargs="+", required=True, metavar="URL")
    parser.add_argument("--decode", nargs="+", required=True, metavar="URL")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    web.run_app(application(options.prefill, options.decode), host=options.host, port=options.port)


if __name__ == "__main__":
    main()
