import verifiers.v1 as vf


class Calls(vf.State):
    count: int = 0


class Calculator(vf.Toolset[vf.ToolsetConfig, Calls]):
    TOOL_PREFIX = None

    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        self.state.count += 1
        return a + b


if __name__ == "__main__":
    Calculator.run()
