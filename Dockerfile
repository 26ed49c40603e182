# Headwater with Apache Spark and Java; or without them, for --spark sail, sc://HOST:PORT and off; or for off alone:
#
#     docker build --tag headwater .
#     docker build --tag headwater:sail --build-arg EXTRAS=sail,otel .
#     docker build --tag headwater:off --build-arg EXTRAS=otel .
#
# Every package is one of those in the lock files, by its hash.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG EXTRAS=spark,otel
WORKDIR /build
COPY requirements.lock requirements-sail.lock ./
RUN python -m venv /build/tools \
    && tools/bin/pip install --no-cache-dir --constraint requirements.lock hatchling \
    && python -m venv /opt/headwater
COPY pyproject.toml README.md LICENSE ./
COPY catalog catalog
COPY engine engine
COPY headwater headwater
COPY server server
COPY sql sql
RUN tools/bin/python -m hatchling build --target wheel \
    && case ",${EXTRAS}," in *,spark,*) lock=requirements.lock ;; *) lock=requirements-sail.lock ;; esac \
    && wheel=$(echo dist/*.whl) \
    && sum=$(sha256sum "${wheel}") \
    && echo "headwater[${EXTRAS}] @ file:///build/${wheel} --hash=sha256:${sum%% *}" > wheel.txt \
    && /opt/headwater/bin/pip install --no-cache-dir --constraint "${lock}" --requirement wheel.txt

FROM ${PYTHON_IMAGE}
ARG EXTRAS=spark,otel
LABEL org.opencontainers.image.title="Headwater" \
    org.opencontainers.image.description="Stream tables, queues and registers in front of any PostgreSQL" \
    org.opencontainers.image.licenses="Apache-2.0"
# tini ends processes whose parents have gone, and passes signals on. The Java is that of the image apache/spark, which a
# driver shares with its executors. Debian keeps one version of each, so that none can be named here.
# hadolint ignore=DL3008
RUN case ",${EXTRAS}," in *,spark,*) java=openjdk-17-jre-headless ;; *) java= ;; esac \
    && apt-get update \
    && apt-get install --yes --no-install-recommends tini ${java} \
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
