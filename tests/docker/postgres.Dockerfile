# Debian's PostgreSQL in the place of the pinned image, which a machine without a registry cannot have: with what of that
# image's entrypoint the compose file uses.
ARG BASE
FROM ${BASE}
RUN groupadd --system --gid 999 postgres \
    && useradd --system --uid 999 --gid postgres --home-dir /var/lib/postgresql postgres \
    && mkdir -p /etc/postgresql-common && echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf \
    && apt-get update && apt-get install --yes --no-install-recommends postgresql-15 \
    && install -d -o postgres -g postgres -m 1777 /var/lib/postgresql/data
ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/bin:/bin PGDATA=/var/lib/postgresql/data
VOLUME /var/lib/postgresql/data
COPY --chmod=755 postgres-entrypoint /usr/local/bin/
STOPSIGNAL SIGINT
ENTRYPOINT ["postgres-entrypoint"]
