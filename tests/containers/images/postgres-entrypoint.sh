#!/bin/sh
# What the image of PostgreSQL does on its first start, as far as docker-compose.yml relies on it: a cluster in PGDATA
# with the user, password and database that the environment names, reachable over TCP with that password only.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    password=$(mktemp)
    printf '%s' "$POSTGRES_PASSWORD" >"$password"
    initdb --pgdata="$PGDATA" --encoding=UTF8 --locale=C.UTF-8 --username="$POSTGRES_USER" --pwfile="$password" --auth-local=trust --auth-host=scram-sha-256
    rm -f "$password"
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
    pg_ctl --pgdata="$PGDATA" --options="-c listen_addresses=''" --wait start
    createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl --pgdata="$PGDATA" --mode=fast --wait stop
fi
exec "$@"
