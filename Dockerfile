# duemq in a small image:   docker build -t duemq .   docker run -p 8787:8787 -v duemq:/data duemq
# A whole cluster with Kafka and ZooKeeper: compose.yaml.
FROM python:3.11-slim AS build
# A top-level folder called `wheel` must not shadow the distribution of that name.
ENV PYTHONSAFEPATH=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY . .
RUN python -m venv /opt/duemq && /opt/duemq/bin/pip install --constraint constraints.txt .

FROM python:3.11-slim
COPY --from=build /opt/duemq /opt/duemq
RUN useradd --system --uid 10001 --no-create-home duemq && install -d -o duemq -g duemq /data
ENV PATH=/opt/duemq/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
USER duemq
VOLUME /data
EXPOSE 8787
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8787/healthz', timeout=4)"]
ENTRYPOINT ["duemq"]
CMD ["serve", "--data", "/data", "--listen", "0.0.0.0:8787"]
