"""A verifiers taskset of one turn: say the word again."""

import verifiers.v1 as vf

__all__ = ["EchoTaskset"]


class EchoData(vf.TaskData):
    word: str


class EchoTask(vf.Task[EchoData]):
    @vf.reward(weight=2.0)
    async def same(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.word)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class EchoConfig(vf.TasksetConfig):
    words: tuple[str, ...] = ("one", "two", "three", "four")


class EchoTaskset(vf.Taskset[EchoTask, EchoConfig]):
    def load(self) -> list[EchoTask]:
        return [EchoTask(EchoData(prompt=f"say {word}", word=word), self.config.task) for word in self.config.words]
