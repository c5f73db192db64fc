#!/bin/sh
# Writes what the stack keeps secret, with random values: FOLDER/token, and ENV with passwords and where FOLDER is.
# What is there stays as it is. usage: sh deploy/secrets.sh [ENV [FOLDER]]
set -eu
env=${1:-.env}
folder=${2:-./deploy/secrets}

random() { head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }
has() { grep -qs "^$1=" "$env"; }

(umask 077 && mkdir -p "$folder" && touch "$env")
if [ ! -s "$folder/token" ]; then
    random >"$folder/token"
    chmod 644 "$folder/token" # a container's user reads it; on this machine the folder keeps others out
    echo "wrote $folder/token: the collector's, with every scope. Sign in to the page with it"
fi
has AMMETER_SECRETS || echo "AMMETER_SECRETS=$folder" >>"$env"
for name in AMMETER_DATABASE_PASSWORD AMMETER_GRAFANA_PASSWORD; do
    has "$name" && continue
    echo "$name=$(random)" >>"$env"
    echo "wrote $name to $env"
done
