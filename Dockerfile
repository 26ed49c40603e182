FROM python:3.11-slim-bookworm

# The Java of the image apache/spark, which a driver shares with its executors.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/headwater
COPY requirements.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY catalog catalog
COPY engine engine
COPY headwater headwater
COPY server server
COPY sql sql
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && useradd --system --uid 7432 --home-dir /var/lib/headwater --create-home --shell /usr/sbin/nologin headwater \
    && install --directory --owner=headwater --group=headwater --mode=0755 /var/lib/headwater/mirror

USER headwater
ENV HEADWATER_DATA=/var/lib/headwater \
    HEADWATER_HOST=0.0.0.0
EXPOSE 7432
VOLUME /var/lib/headwater
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s CMD ["headwater", "status"]
ENTRYPOINT ["headwater"]
CMD ["serve"]
