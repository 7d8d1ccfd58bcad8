"""Stand-in for ``vllm serve``: a judge that is asked as vLLM would be and says No to every question.

It writes the cards it was given to its output, which is ``server.log`` in the labelling job's folder. STAND_IN_JUDGE_S is how long it takes
for an answer.
"""

import argparse
import asyncio
import os
import sys

from aiohttp import web

ANSWER = {"role": "assistant", "content": "Reasoning: none.\nJudgement: No"}


async def serve(model: str, port: int) -> None:
    """Answer until ended."""

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": model, "object": "model"}]})

    async def complete(_: web.Request) -> web.Response:
        await asyncio.sleep(float(os.environ.get("STAND_IN_JUDGE_S", "0")))
        choice = {"index": 0, "message": ANSWER, "finish_reason": "stop"}
        return web.json_response({"object": "chat.completion", "choices": [choice]})

    application = web.Application()
    application.router.add_get("/health", health)
    application.router.add_get("/v1/models", models)
    application.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(f"cards: {os.environ.get('CUDA_VISIBLE_DEVICES', '')}", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    options, _ = parser.parse_known_args()
    asyncio.run(serve(options.model, options.port))
