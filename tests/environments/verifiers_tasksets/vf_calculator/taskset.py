import verifiers.v1 as vf

from .calculator import Calculator, Calls


class SumData(vf.TaskData):
    answer: int


class SumConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()
    shared: bool = False


class SumTask(vf.Task[SumData, Calls, SumConfig]):
    @classmethod
    def toolsets(cls, config: SumConfig) -> list[vf.Toolset]:
        return [] if config.shared else [Calculator(config.tools)]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(str(self.data.answer) in trace.last_reply)

    @vf.metric
    async def calls(self, trace: vf.Trace) -> float:
        return float(trace.state.count)


class CalculatorConfig(vf.TasksetConfig):
    task: SumConfig = SumConfig()


class CalculatorTaskset(vf.Taskset[SumTask, CalculatorConfig]):
    @classmethod
    def toolsets(cls, config: CalculatorConfig) -> list[vf.Toolset]:
        return [Calculator(config.task.tools)] if config.task.shared else []

    def load(self) -> list[SumTask]:
        data = [SumData(prompt=f"what is {a}+{a}?", system_prompt="use tools", answer=2 * a) for a in range(5, 8)]
        return [SumTask(each, self.config.task) for each in data]
