"""vLLM as an engine: AsyncLLM in this process, its engine core in a child.

vLLM is imported in ``start``, after the environment variables that it and its children read. What goes beyond its
documented interface is in pieces of its own, each with the reason: ``unsampled``, ``_count_preemptions``,
``_guarded``, the executor in ``_engine_arguments``, and ``vllm_worker``. Nothing else imports vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bus import in_thread
from environments import Finish, Sample
from schemas import ConfigError, EngineError, PolicySettings, Span

from .checkpoint import TensorShapes, check_shapes, tensor_shapes
from .engine import Aborted, SamplingRequest, check_request
from .settings import GeneratorSettings
from .tether import FRONT
from .vllm_worker import ReloadingWorker

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

T = TypeVar("T")
GIB = 1024**3
STOP_GRACE_S = 0.1
"""Time for the engine core to end by itself; on the CPU it would take 4 s, and there is nothing that it could lose."""
ASK_EVERY_S = 1.0
"""Pause between two questions for a sign of life."""
ASK_STAGED_EVERY_S = 0.02
"""Pause between two questions whether weights are staged; each waits for the end of a decoding step."""
CPU_BLOCK_TOKENS = 32
"""Tokens in one block of the prefix cache on the CPU: the smallest that its attention kernel is fast with."""


class VllmEngine:
    """See ``engine.Engine``. One instance serves one start and one stop."""

    def __init__(self, model: Path, settings: GeneratorSettings, policy: PolicySettings, dtype: str, seed: int) -> None:
        """``dtype`` is the type in which the engine computes; two generators need different ``seed``s."""
        self._model = model
        self._settings = settings
        self._dtype = dtype
        self._seed = seed
        self._llm: AsyncLLM | None = None
        self._version: int | None = None
        self._shapes: TensorShapes = {}
        self._preemptions = 0
        self._asked_at: float | None = None
        """When the engine core was asked for a sign of life, while the answer is not here."""
        self._listening: asyncio.Task[None] | None = None
        self._keeper: threading.Thread | None = None
        self._stopping = threading.Event()

    async def start(self) -> None:
        self._shapes = await in_thread(tensor_shapes, self._model)
        started: asyncio.Future[AsyncLLM] = asyncio.get_running_loop().create_future()
        # A thread of its own, alive until `stop`: building the engine takes 10 s and more, in which the loop has
        # heartbeats to send, and the tether kills the engine core when the thread that started it ends.
        self._keeper = threading.Thread(
            target=self._keep, args=(started, asyncio.get_running_loop()), name="engine-keeper", daemon=True
        )
        self._keeper.start()
        self._llm = await started
        # Cached from now on; so `generate` registers a request before it first gives way to other tasks.
        await self._guarded(self._llm.get_supported_tasks())
        self._listening = asyncio.create_task(self._listen(self._llm))

    async def _listen(self, llm: AsyncLLM) -> None:
        """Ask the engine core for a sign of life again and again: one that is stopped or hangs fails no request.

        Requests and calls then wait for as long as that lasts, and go on after it.
        """
        with contextlib.suppress(EngineError):  # of a dead one, which every call tells
            while True:
                self._asked_at = time.monotonic()
                await self._guarded(llm.is_paused())
                self._asked_at = None
                await asyncio.sleep(ASK_EVERY_S)

    def _keep(self, started: asyncio.Future[AsyncLLM], loop: asyncio.AbstractEventLoop) -> None:
        try:
            llm = self._build()
        except Exception as error:
            message = (
                f"vLLM did not start with {self._model}: {type(error).__name__}: {error}; its own log lines above say "
                "more, and `headrace doctor` checks what it needs"
            )
            _tell(loop, _fail, started, EngineError(message))
            return
        _tell(loop, _succeed, started, llm)
        self._stopping.wait()
        logging.getLogger("vllm").setLevel(logging.ERROR)  # it warns of each process that it has to kill
        llm.shutdown(timeout=STOP_GRACE_S)

    def _build(self) -> AsyncLLM:
        on_cpu = _torch_is_cpu_only()
        os.environ.update(_environment(self._settings, on_cpu))
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        class Front(AsyncLLM):
            def __del__(self) -> None:
                """`stop` has ended it; at the interpreter's end vLLM's own finalizer would find its modules gone."""

        arguments = _engine_arguments(self._model, self._settings, self._dtype, self._seed, on_cpu)
        return Front.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[self._count_preemptions()])

    def _count_preemptions(self) -> Any:
        """A stat logger that only counts preemptions.

        vLLM adds a logger that feeds some hundred Prometheus metrics at every step unless one of the loggers is of
        that type; so this one is, and takes nothing from its base.
        """
        from vllm.v1.metrics.loggers import PrometheusStatLogger

        engine = self

        class PreemptionCounter(PrometheusStatLogger):
            def __init__(self, vllm_config: Any, engine_indexes: Any = None) -> None:
                pass

            def record(
                self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
            ) -> None:
                if iteration_stats is not None:
                    engine._preemptions += iteration_stats.num_preempted_reqs

            def log_engine_initialized(self) -> None:
                pass

        return PreemptionCounter

    async def sample(self, request: SamplingRequest) -> Sample:
        llm = self._alive()
        if self._version is None:
            raise EngineError("the engine has no version label: call label() before the first request")
        check_request(request, self._settings.max_model_len)
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        prompt = tokens_input(request.tokens, cache_salt=request.salt)
        final: RequestOutput | None = None
        try:
            async for output in llm.generate(prompt, _sampling_parameters(request), request.id):
                final = output
        except (EngineDeadError, EngineGenerateError) as error:
            raise EngineError(f"vLLM failed during request {request.id}: {error}: {_REPLACE}") from error
        assert final is not None
        if final.outputs[0].finish_reason == "abort":
            self._alive()  # when it is not, the engine was stopped
            raise Aborted(request.id)
        return _sample_of(request, final)

    async def pause(self) -> None:
        # Explicitly no clearing: the core clears the cache in mode "keep" too, whatever the docstring says.
        await self._guarded(self._alive().pause_generation(mode="keep", clear_cache=False))

    def unsampled(self) -> set[str]:
        # The front's own request states are the only place that tells which request has a token; with outputs asked
        # for at the end only, `generate` yields nothing before.
        states = self._alive().output_processor.request_states.values()
        return {
            state.external_req_id
            for state in states
            if state.detokenizer is not None and state.detokenizer.num_output_tokens() == 0
        }

    async def abort(self, ids: Iterable[str]) -> None:
        # Ends each request's output queue with reason "abort" at once; a token of the last step that is still on its
        # way here is then passed over. What finished before keeps its whole sample.
        await self._alive().abort(list(ids))

    async def stage(self, folder: Path) -> None:
        path = await in_thread(_checked_path, folder, self._shapes)
        await self._guarded(self._alive().collective_rpc("begin_staging", args=(path,)))
        while not all(await self._guarded(self._alive().collective_rpc("has_staged"))):  # noqa: ASYNC110
            await asyncio.sleep(ASK_STAGED_EVERY_S)

    async def load(self, folder: Path) -> None:
        path = await in_thread(_checked_path, folder, self._shapes)
        await self._guarded(self._alive().collective_rpc("load_all_weights", args=(path,)))

    async def label(self, version: int) -> None:
        await self._guarded(self._alive().update_weight_version(str(version)))
        self._version = version

    async def resume(self) -> None:
        await self._guarded(self._alive().resume_generation())

    async def stop(self) -> None:
        llm, self._llm = self._llm, None  # from here on `sample` takes "abort" for the end of the engine
        if self._listening is not None:
            self._listening.cancel()
        if llm is not None:
            with contextlib.suppress(Exception):  # of an engine that is dead already
                await llm.abort([state.external_req_id for state in llm.output_processor.request_states.values()])
            if llm.output_handler is not None:
                llm.output_handler.cancel()  # it would log the orderly end of the engine core as a failure
        self._stopping.set()
        # An engine that is still being built cannot be interrupted: it ends with this process, to which it is tied.
        if self._keeper is not None and llm is not None:
            await in_thread(self._keeper.join)

    def gauges(self) -> dict[str, float]:
        llm = self._alive()
        waiting = len(self.unsampled())
        return {
            "running": float(llm.get_num_unfinished_requests() - waiting),
            "waiting": float(waiting),
            "preemptions": float(self._preemptions),
            "silent_s": 0.0 if self._asked_at is None else time.monotonic() - self._asked_at,
        }

    def _alive(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineError("vLLM is not running: it was not started, or it was stopped")
        if self._llm.errored:
            raise EngineError(f"vLLM's engine core has died: {_REPLACE}")
        return self._llm

    async def _guarded(self, call: Awaitable[T]) -> T:
        """The call's result. Raises EngineError when it fails or the engine dies meanwhile.

        vLLM fails the requests of a dead engine core, but leaves calls such as collective_rpc unanswered for ever.
        """
        task = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait({task}, timeout=0.5))[0]:
                self._alive()
            return task.result()
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"vLLM failed: {type(error).__name__}: {error}: {_REPLACE}") from error
        finally:
            task.cancel()


_REPLACE = "this engine can't be used any more; start the generator again (its groups are played by others meanwhile)"


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> None:
    """Have ``loop`` make the call, unless the generator has ended while its engine was being built."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call, *arguments)


def _succeed(started: asyncio.Future[AsyncLLM], llm: AsyncLLM) -> None:
    if not started.done():
        started.set_result(llm)


def _fail(started: asyncio.Future[AsyncLLM], error: EngineError) -> None:
    if not started.done():
        started.set_exception(error)


def _checked_path(folder: Path, shapes: TensorShapes) -> str:
    """Absolute path of weights that can be loaded: of a missing tensor vLLM only warns, and it keeps the old one."""
    check_shapes(folder, shapes)
    return str(folder.absolute())


def _torch_is_cpu_only() -> bool:
    """By the build of torch, as vLLM's CPU package needs exactly that; asking for devices would initialize CUDA."""
    import torch

    return torch.version.cuda is None and torch.version.hip is None


def _environment(settings: GeneratorSettings, on_cpu: bool) -> dict[str, str]:
    """Environment variables of vLLM and its children."""
    variables = {
        "VLLM_LOGGING_LEVEL": "ERROR",  # each reload warns of tensors that need none
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is ours
        "VLLM_NO_USAGE_STATS": "1",
        # Otherwise gloo listens at the address of the host's name, and NCCL at any: an engine is on one machine.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", "lo"),
        "DO_NOT_TRACK": "1",
        FRONT: str(os.getpid()),
    }
    if on_cpu:
        # Dynamo would compile small functions with a C++ compiler, for nothing: 3 to 27 s at the first request.
        variables["TORCHDYNAMO_DISABLE"] = "1"
        variables["OMP_NUM_THREADS"] = str(settings.threads)
        # vLLM would take all cores but one and pin threads to them, also where trainer and server run.
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        # oneDNN compiles a kernel for each number of tokens in a step, 1 ms and 0.3 MB for each shape of a layer. Its
        # cache of 1,024 is too small for 256 requests at once; a far larger one goes on growing for hours.
        variables["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "2048"
        # New weights are copied and packed into fresh memory, by a thread: in large pages that takes two thirds of the
        # time, and with one arena for all threads it reuses what the weights before them took.
        variables["GLIBC_TUNABLES"] = os.environ.get(
            "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
        )
    return variables


def _engine_arguments(model: Path, settings: GeneratorSettings, dtype: str, seed: int, on_cpu: bool) -> dict[str, Any]:
    """Arguments of AsyncEngineArgs."""
    arguments: dict[str, Any] = {
        "model": str(model.absolute()),
        "skip_tokenizer_init": True,  # tokens in, tokens out
        "generation_config": "vllm",  # nothing from the model's own sampling defaults
        "dtype": dtype,
        "seed": seed,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.concurrency,
        "tensor_parallel_size": settings.tensor_parallel_size,
        # Not run on a GPU yet. A call to one engine core, as for a swap, vLLM then makes to all, and waits for all.
        "data_parallel_size": settings.data_parallel_size,
        "worker_extension_cls": f"{ReloadingWorker.__module__}.{ReloadingWorker.__qualname__}",
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",  # after temperature, as importance ratios need
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if not on_cpu:
        return arguments | {"gpu_memory_utilization": settings.gpu_memory_utilization}
    if settings.data_parallel_size > 1:
        raise ConfigError(
            f"generator.data_parallel_size {settings.data_parallel_size} is for GPUs, and this engine runs on the CPU: "
            "set it to 1, and start more generators instead (generator.count)"
        )
    if settings.tensor_parallel_size == 1:
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        # The worker inside the engine core: 7 s less at start, one process and 0.6 GB less. vLLM's CPU platform
        # refuses the name "uni" because it could not set OpenMP's environment for it; here that is set already.
        arguments["distributed_executor_backend"] = UniProcExecutor
    return arguments | {
        "enforce_eager": True,
        "block_size": CPU_BLOCK_TOKENS,
        "kv_cache_memory_bytes": int(settings.kv_cache_gib * GIB),
    }


def _sampling_parameters(request: SamplingRequest) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        stop_token_ids=request.stop_ids,
        ignore_eos=True,
        detokenize=False,
        logprobs=0,  # of the sampled token alone
        flat_logprobs=True,  # lists instead of a dictionary for each token
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def _sample_of(request: SamplingRequest, output: RequestOutput) -> Sample:
    """Raises EngineError when the request ended in a way that it never should."""
    from vllm.logprobs import FlatLogprobs

    completion = output.outputs[0]
    finish: Finish
    match completion.finish_reason:
        case "stop" | "length" as finish:
            pass
        case other:
            raise EngineError(f"vLLM ended request {request.id} with reason {other!r}: {_REPLACE}")
    tokens, logprobs = list(completion.token_ids), completion.logprobs
    assert isinstance(logprobs, FlatLogprobs)
    # Each position begins with the sampled token's own value.
    values = [logprobs.logprobs[start] for start in logprobs.start_indices]
    spans = [Span(int(span.version), span.start, span.end) for span in completion.weight_versions or []]
    return Sample(tokens=tokens, logprobs=values, spans=spans, finish=finish, cached=output.num_cached_tokens or 0)
