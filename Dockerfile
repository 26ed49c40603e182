# Headwater with Apache Spark and Java; or without them, for --spark sail, sc://HOST:PORT and off; or for off alone:
#
#     docker build --tag headwater .
#     docker build --tag headwater:sail --build-arg SPARK=sail .
#     docker build --tag headwater:off --build-arg SPARK=off .
#
# The packages are those of deploy/image/SPARK.lock, by their hashes.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG SPARK=spark
WORKDIR /build
COPY deploy/image deploy/image
RUN python -m venv tools \
    && tools/bin/pip install --no-cache-dir --require-hashes --requirement deploy/image/build.lock \
    && python -m venv /opt/headwater \
    && /opt/headwater/bin/pip install --no-cache-dir --require-hashes --requirement "deploy/image/${SPARK}.lock"
COPY pyproject.toml README.md LICENSE ./
COPY catalog catalog
COPY engine engine
COPY headwater headwater
COPY server server
COPY sql sql
RUN tools/bin/python -m hatchling build --target wheel \
    && /opt/headwater/bin/pip install --no-cache-dir --no-deps dist/*.whl

FROM ${PYTHON_IMAGE}
ARG SPARK=spark
LABEL org.opencontainers.image.title="Headwater" \
    org.opencontainers.image.description="Stream tables, queues and registers in front of any PostgreSQL" \
    org.opencontainers.image.licenses="Apache-2.0"
# tini ends processes whose parents have gone, and passes signals on. The Java is that of the image apache/spark, which a
# driver shares with its executors. Debian keeps one version of each, so that none can be named here.
# hadolint ignore=DL3008
RUN set -- tini \
    && if [ "${SPARK}" = spark ]; then set -- "$@" openjdk-17-jre-headless; fi \
    && apt-get update \
    && apt-get install --yes --no-install-recommends "$@" \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 7432 headwater \
    && useradd --system --uid 7432 --gid 7432 --home-dir /var/lib/headwater --shell /usr/sbin/nologin headwater \
    && install --directory --owner=headwater --group=headwater --mode=0755 /var/lib/headwater /var/lib/headwater/mirror
COPY --from=build /opt/headwater /opt/headwater

# By number, which Kubernetes can tell from root.
USER 7432:7432
ENV PATH=/opt/headwater/bin:$PATH \
    HEADWATER_DATA=/var/lib/headwater \
    HEADWATER_HOST=0.0.0.0 \
    HEADWATER_METRICS=127.0.0.1:9187
EXPOSE 7432 9187
VOLUME /var/lib/headwater
STOPSIGNAL SIGTERM
# Whether clients may come.
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s \
    CMD ["python", "-I", "-S", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9187/readyz', timeout=5)"]
ENTRYPOINT ["tini", "--", "headwater"]
CMD ["serve"]
