# Headrace as an image: every role, and the headrace command.
#
#   docker build -t headrace:cpu .
#   docker build -t headrace:gpu --build-arg ENGINE=gpu .
#
# Layers in the order in which they change: system packages, pinned dependencies, the project. Nothing here needs
# BuildKit. The project is installed in /headrace, where a run's files are too: configs/, models/ and runs/.

ARG PYTHON=3.11-slim-bookworm
ARG ENGINE=cpu

FROM python:${PYTHON} AS system
ARG ENGINE
WORKDIR /headrace
# libnuma1: vLLM's CPU engine dies without it. The GPU's compiles kernels when it runs, and needs a compiler for that.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libnuma1 $([ "$ENGINE" = cpu ] || echo g++ libc6-dev) \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log \
    && useradd --uid 10001 --create-home headrace

FROM system AS dependencies
ARG ENGINE
# One library of tasks comes without a wheel. The compiler for it stays behind in this stage.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev
COPY pyproject.toml constraints-${ENGINE}.txt ./
COPY tools/setup tools/setup
RUN PIP_NO_CACHE_DIR=1 python3 -m tools.setup.image "$ENGINE"

FROM dependencies AS project
COPY . .
RUN .venv/bin/python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM system
COPY --from=dependencies /headrace/.venv .venv
COPY --from=project /wheels /wheels
RUN .venv/bin/python -m pip install --no-cache-dir --no-deps /wheels/*.whl \
    && rm -r /wheels \
    && install -d -o headrace -g headrace models runs
COPY configs configs
USER headrace
ENV PATH=/headrace/.venv/bin:$PATH \
    HOME=/home/headrace \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["headrace"]
CMD ["--help"]
