"""One rollout of a verifiers task whose model calls go to a policy handle, token by token.

verifiers keeps everything that is its own: tasks and their hooks, tool servers, stops, scoring. Two of its parts are
replaced. Its harness, the program that talks to the model, is here a loop in this process with the behaviour of its
``null`` harness: a program for each play would be a Python for each play. And the client behind its interception
server, through which every model call passes, asks the policy instead of an endpoint.

What the policy said goes back to it as it said it. verifiers passes messages on in OpenAI's form, where tool calls and
thinking are fields of their own; written again by the chat template they would differ from what was sampled.

This module imports verifiers, which takes seconds: only ``verifiers_adapter`` loads it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects import Dialect
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.graph import PendingTurn
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.mcp.launch import SharedToolServer, serve_shared
from verifiers.v1.rollout import Rollout, RolloutTimeouts
from verifiers.v1.session import RolloutLimits
from verifiers.v1.utils.aio import run_shielded

from schemas import EnvironmentFault

from .policy import Policy, Reply
from .tool_calls import parse_tool_calls

MODEL = "policy"
"""What verifiers' records call the model."""


class PolicyClient(vf.Client):  # type: ignore[misc]
    """Answers the model calls of one rollout with a policy handle."""

    def __init__(self, policy: Policy, max_tokens: int | None) -> None:
        self._policy = policy
        self._max_tokens = max_tokens
        self._said: list[tuple[dict[str, Any], str]] = []
        self.fault: Exception | None = None
        """What the policy raised: verifiers would make an HTTP status of it."""

    async def get_response(
        self,
        dialect: Dialect,
        body: dict[str, Any],
        sampling: vf.SamplingConfig,
        session_id: str | None = None,
        turn: PendingTurn | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> vf.Response:
        """Raises what ``policy.chat`` raises."""
        try:
            reply = await self._policy.chat(
                self._as_said(body["messages"]), tools=body.get("tools"), max_tokens=self._max_tokens
            )
        except Exception as error:
            self.fault = error
            raise
        message, finish = _message(reply, len(self._said))
        self._said.append((message, reply.text))
        choice = {"index": 0, "message": message, "finish_reason": finish}
        usage = {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.tokens,
            "total_tokens": reply.prompt_tokens + reply.tokens,
        }
        raw = {"id": f"{len(self._said)}", "object": "chat.completion", "created": int(time.time()), "model": MODEL,
               "choices": [choice], "usage": usage}  # fmt: skip
        response = dialect.parse_response(dialect.validate_response(raw))
        response.raw = raw
        return response

    def _as_said(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """``messages`` for the chat template: the policy's own in its own words, contents as plain text."""
        own, at = [], 0
        for message in messages:
            # A prompt may show replies of others, and a hook of the task may have changed one of these.
            found = next((i for i in range(at, len(self._said)) if self._said[i][0] == message), None)
            if found is None:
                own.append(_plain(message))
            else:
                own.append({"role": "assistant", "content": self._said[found][1]})
                at = found + 1
        return own


def _message(reply: Reply, number: int) -> tuple[dict[str, Any], str]:
    """The reply as OpenAI's message, and its finish reason. ``number``: of the reply, for unique ids of calls."""
    thinking, closed, text = reply.text.rpartition("</think>")
    content, calls = parse_tool_calls(text)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if closed:
        message |= {"reasoning_content": thinking.removeprefix("<think>").strip(), "content": content.lstrip("\n")}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{i}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for i, call in enumerate(calls)
        ]
    return message, "tool_calls" if calls else reply.finish


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """``message`` as templates read it: contents as text, arguments of calls as objects."""
    plain = dict(message)
    if isinstance(content := message.get("content"), list):
        if odd := [part.get("type") for part in content if part.get("type") != "text"]:
            raise EnvironmentFault(f"a message holds {odd[0]}: only text can be given to the policy")
        plain["content"] = "\n".join(part["text"] for part in content)
    if calls := message.get("tool_calls"):
        read = [call["function"] | {"arguments": json.loads(call["function"]["arguments"])} for call in calls]
        plain["tool_calls"] = [call | {"function": function} for call, function in zip(calls, read, strict=True)]
    return plain


class PolicyInterception(InterceptionServer):  # type: ignore[misc]
    """verifiers' own server on the loopback device; whatever rollout is served, ``client`` answers."""

    def __init__(self, client: PolicyClient, state_secrets: tuple[str, ...]) -> None:
        super().__init__(state_service_secrets=state_secrets)
        self._policy_client = client

    def _client(self, config: vf.BaseClientConfig) -> PolicyClient:
        return self._policy_client


class ChatHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Talks with the model until it calls no tool, as the ``null`` harness does."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Raises HarnessError when the model's side refuses: a limit, a stop, or a fault of the policy."""
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        messages = _opening(*self.resolve_prompt(data))
        async with AsyncExitStack() as stack:
            # Plain HTTP on the loopback device: certificates would be read for nothing, and replies take their time.
            http = httpx.AsyncClient(timeout=None, verify=False, headers={"authorization": f"Bearer {secret}"})
            model = await stack.enter_async_context(http)
            tools, dispatch, connected = await connect_mcp({"mcpServers": servers}, stack)
            while calls := await _reply(model, f"{endpoint}/chat/completions", messages, tools):
                for call in calls:
                    messages.append(bound_tool_message(await _result(call, dispatch, connected)))
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def _opening(system: str | None, prompt: str | vf.Messages | None) -> list[dict[str, Any]]:
    opening = [] if system is None else [{"role": "system", "content": system}]
    if isinstance(prompt, str):
        return [*opening, {"role": "user", "content": prompt}]
    return [*opening, *(message_to_wire(message) for message in prompt or [])]


async def _reply(
    model: httpx.AsyncClient, url: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Append the model's reply to ``messages``; returns the tool calls in it."""
    body: dict[str, Any] = {"model": MODEL, "messages": messages}
    response = await model.post(url, json=body | ({"tools": tools} if tools else {}))
    if response.is_error:
        raise vf.HarnessError(f"the model call was refused: {response.text[:500]}")
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    messages.append(message)
    return list(message.get("tool_calls") or [])


async def _result(
    call: dict[str, Any], dispatch: dict[str, tuple[str, str]], servers: dict[str, Any]
) -> dict[str, Any]:
    name = call["function"]["name"]
    content: Any = f"error: unknown tool {name!r}"
    if name in dispatch:
        content = await call_mcp(servers, dispatch, name, json.loads(call["function"]["arguments"]))
    return {"role": "tool", "tool_call_id": call["id"], "content": content, "name": name}


class SharedTools:
    """The tool servers of a whole taskset: started for the first play, kept for all that follow in its event loop."""

    def __init__(self, taskset: vf.Taskset) -> None:
        self._toolsets: list[vf.Toolset] = taskset.toolsets(taskset.config)
        self._serving: asyncio.Task[None] | None = None

    async def servers(self) -> dict[str, SharedToolServer]:
        """By name. Raises what kept one from starting; the next play tries again."""
        if not self._toolsets:
            return {}
        if self._serving is None or self._serving.done():
            self._started: asyncio.Future[dict[str, SharedToolServer]] = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._started))
        return await asyncio.shield(self._started)

    async def _serve(self, started: asyncio.Future[dict[str, SharedToolServer]]) -> None:
        """Until the loop ends, which cancels this. The servers end with their parent's process too."""
        try:
            async with serve_shared(self._toolsets) as servers:
                started.set_result(servers)
                await asyncio.Event().wait()
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)


async def play(
    task: vf.Task, shared: SharedTools, policy: Policy, *, max_turns: int | None, max_tokens: int | None
) -> vf.Trace:
    """One rollout of ``task`` to its scores.

    ``max_turns``: most replies. ``max_tokens``: of each reply.
    Raises what ``policy.chat`` raised, and EnvironmentFault where the rollout failed in verifiers.
    """
    client = PolicyClient(policy, max_tokens)
    tools = await shared.servers()
    secrets = tuple(tool.state_secret for tool in tools.values() if tool.state_secret)
    async with PolicyInterception(client, secrets) as interception:
        trace = await _finished(_rollout(task, tools, interception, max_turns))
    if client.fault is not None:
        raise client.fault
    if not trace.ok:
        why = "; ".join(f"{error.type}: {error.message}" for error in trace.errors)
        raise EnvironmentFault(f"the rollout failed in verifiers: {why}")
    return trace


def _rollout(
    task: vf.Task, tools: dict[str, SharedToolServer], interception: PolicyInterception, max_turns: int | None
) -> Rollout:
    runtime = vf.SubprocessConfig()
    return Rollout(
        task=task,
        agent_config=vf.AgentConfig(model=MODEL, runtime=runtime),
        harness=ChatHarness(vf.HarnessConfig(id="headrace")),
        # Never connected to: PolicyInterception has the client.
        ctx=vf.ModelContext(model=MODEL, client=vf.EvalClientConfig(base_url="", api_key_var="")),
        runtime_config=runtime,
        timeouts=RolloutTimeouts(),
        limits=RolloutLimits(max_turns=max_turns),
        shared_tools=tools,
        interception=interception,
    )


async def _finished(rollout: Rollout) -> vf.Trace:
    """Open, play and score ``rollout``; one that is cancelled leaves neither process nor folder."""
    try:
        if await rollout.open():
            await rollout.step()
            if rollout.ok:
                rollout.trace.stop("agent_completed")
        return await rollout.close()
    except BaseException:
        await run_shielded(rollout.abort())
        raise
