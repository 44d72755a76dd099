# duemq in a small image:   docker build -t duemq .   docker run -p 8787:8787 -v duemq:/data -e DUEMQ_HTTP__API_KEYS=… duemq
# A whole cluster with Kafka and ZooKeeper: compose.yaml. What it needs of its surroundings: docs/operate/operations.md, "In a container".
FROM python:3.11-slim AS build
# A top-level folder called `wheel` must not shadow the distribution of that name.
ENV PYTHONSAFEPATH=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# The build's own tools are held to these versions, too: by the first of these in older pips, by the second in newer ones.
ENV PIP_CONSTRAINT=/source/constraints.txt PIP_BUILD_CONSTRAINT=/source/constraints.txt
WORKDIR /source
COPY . .
RUN python -m venv /opt/duemq && /opt/duemq/bin/pip install '.[server,login,otel,objectstore,http,rabbitmq,nats,redis,rocketmq]'

FROM python:3.11-slim
COPY --from=build /opt/duemq /opt/duemq
# Any user of the group 0 can write /data: some clusters run each container under a user of their choice.
RUN useradd --system --uid 10001 --gid 0 --no-create-home duemq \
    && install -d -o duemq -g 0 /data && chgrp 0 /data && chmod 770 /data
ENV PATH=/opt/duemq/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Settings and not options of CMD, so that `duemq health` knows them, too.
ENV DUEMQ_DATA=/data DUEMQ_LISTEN=0.0.0.0:8787 DUEMQ_NODE__LISTEN=0.0.0.0:8788 DUEMQ_RELAY__LISTEN=0.0.0.0:8789
USER 10001:0
VOLUME /data
EXPOSE 8787 8788 8789
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["duemq", "health", "--live"]
ENTRYPOINT ["duemq"]
CMD ["serve"]
