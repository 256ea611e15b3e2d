# Debian's Prometheus in the place of the pinned image, which a machine without a registry cannot have.
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends prometheus && install -d -o nobody -g nogroup /prometheus
ENTRYPOINT ["prometheus"]
