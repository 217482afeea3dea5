"""``verifiers``: the tasks of an installed verifiers taskset, scored by its own rewards, played by our policy."""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from schemas import EnvironmentFault, Task

from .environment import Environment
from .outcome import Outcome
from .policy import Policy

if TYPE_CHECKING:  # it imports verifiers
    from .verifiers_rollout import SharedTools

REQUIREMENT = "verifiers==0.4.0"


class Verifiers(Environment):
    """Tasks of one agent that converses and calls tools, on this machine. docs/environments.md says what is refused."""

    def __init__(
        self,
        *,
        seed: int,
        id: Annotated[str, Meta(min_length=1)],
        args: dict[str, Any] = {},  # noqa: B006 - read only
        tasks: Annotated[int, Meta(ge=1)] | None = None,
        max_turns: Annotated[int, Meta(ge=1)] | None = None,
        max_tokens: Annotated[int, Meta(ge=1)] | None = None,
    ) -> None:
        """``id``: of an installed taskset package. ``args``: settings of its taskset.

        ``tasks``: take the first of its tasks only; all where not given. ``max_turns``: most replies of a play.
        ``max_tokens``: of one reply.
        Raises EnvironmentFault where verifiers is not installed, or for a kind of environment that cannot be played.
        """
        super().__init__(seed=seed)
        self._max_turns, self._max_tokens = max_turns, max_tokens
        self._taskset = _taskset(id, args, tasks)
        self._tools: SharedTools | None = None
        self._rows = list(self._taskset)
        if not self._rows:
            raise EnvironmentFault(f"the verifiers taskset {id!r} has no task: check args, its settings")

    def task(self, index: int) -> Task:
        """Each epoch has all rows once, in an order of its own."""
        epoch, place = divmod(index, len(self._rows))
        row = self._order(epoch)[place]
        task = self._rows[row]
        _check(task)
        return Task(prompt=task.data.prompt_text, data={"row": row, "key": task.key[:16]})

    async def play(self, task: Task, policy: Policy) -> Outcome:
        """Raises EnvironmentFault where the rows here are not those that the task was made from."""
        from .verifiers_rollout import SharedTools, play

        row, key = task.data["row"], task.data["key"]
        if row >= len(self._rows) or self._rows[row].key[:16] != key:
            raise EnvironmentFault(
                f"row {row} of the taskset is not the one that the task was made from: its load() must give the same "
                "rows in each process, and every machine needs the same version of it"
            )
        self._tools = self._tools or SharedTools(self._taskset)
        trace = await play(self._rows[row], self._tools, policy, max_turns=self._max_turns, max_tokens=self._max_tokens)
        rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return Outcome(reward=trace.reward, metrics=rewards | metrics)

    @functools.lru_cache(maxsize=4)  # noqa: B019 - an environment lives as long as its process
    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._rows)))
        random.Random(f"{self.seed}:{epoch}").shuffle(order)
        return order


def _taskset(id: str, args: dict[str, Any], tasks: int | None) -> Any:
    """The taskset, or a view of its first ``tasks``. Raises EnvironmentFault."""
    try:
        import verifiers.v1 as vf
    except ImportError as error:
        raise EnvironmentFault(f"verifiers cannot be imported ({error}): pip install '{REQUIREMENT}'") from None
    try:
        config = vf.taskset_config_type(id).model_validate({**args, "id": id})
        environment, harness = vf.environment_class(id), vf.default_harness_id(id)
    except ImportError as error:
        raise EnvironmentFault(f"the verifiers taskset {id!r} cannot be imported: {error}") from None
    if environment is not vf.SingleAgentEnv:
        raise EnvironmentFault(
            f"{id!r} brings {environment.__name__}, which runs its agents itself: only tasks of one agent are played"
        )
    if harness == id:
        raise EnvironmentFault(f"{id!r} brings a harness, a program of its own that talks to the model: none is run")
    taskset = vf.load_taskset(config)
    if type(taskset).task_type().NEEDS_CONTAINER:
        raise EnvironmentFault(f"the tasks of {id!r} need a container: tasks are played on the generator's machine")
    if tasks is None and not taskset.bounded:
        raise EnvironmentFault(f"the verifiers taskset {id!r} has no end: set tasks to how many to take")
    return taskset if tasks is None else taskset.take(tasks)


def _check(task: Any) -> None:
    """Raises EnvironmentFault for a row that cannot be played."""
    data = task.data
    if data.image is not None or data.agent_user is not None:
        problem = "needs a container"
    elif data.skills:
        problem = "brings skills, files for an agent's program"
    elif data.prompt is None:
        problem = "has no prompt: it is for an environment with a simulated user"
    elif not isinstance(data.prompt, str) and any(isinstance(m.content, list) for m in data.prompt):
        problem = "has content other than text"
    else:
        return
    raise EnvironmentFault(f"row {data.idx} of the verifiers taskset {problem}: such tasks cannot be played")
