#!/bin/sh
# Finds the real parts the tests talk to, and installs what is missing where that is possible (Debian, root).
# A part that stays missing skips its tests with a reason; under CI=true it fails them. Arguments: programs beside them.
missing=""
command -v promtool >/dev/null || missing="$missing prometheus"
command -v amtool >/dev/null || missing="$missing prometheus-alertmanager"
command -v chromium >/dev/null || missing="$missing chromium"
command -v chromedriver >/dev/null || missing="$missing chromium-driver"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
command -v slurmctld >/dev/null || [ -x /usr/sbin/slurmctld ] || missing="$missing slurm-wlm"
command -v munged >/dev/null || [ -x /usr/sbin/munged ] || missing="$missing munge"
command -v unshare >/dev/null || missing="$missing util-linux"
command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || missing="$missing haproxy"
command -v npm >/dev/null || missing="$missing nodejs npm"
for more in "$@"; do command -v "$more" >/dev/null || missing="$missing $more"; done
# The packages with which Grafana draws, for the tests of the boards; once per lock file.
grafana() {
    lock=dashboards/render/package-lock.json
    there=dashboards/render/node_modules/.package-lock.json
    command -v npm >/dev/null && [ -f "$lock" ] || return 0
    [ -f "$there" ] && ! [ "$lock" -nt "$there" ] && return 0
    echo "installing the packages of $lock ..."
    npm ci --prefix dashboards/render --fetch-retries 1 --loglevel error >/dev/null && touch "$there" \
        || echo "could not install them (their tests will be skipped)"
}
[ -z "$missing" ] && { grafana; exit 0; }
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing$missing ..."
    policy=/usr/sbin/policy-rc.d # Debian must not start the services it installs
    [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=1; }
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install -y --no-install-recommends $missing; } >/tmp/ammeter-parts.$$.log 2>&1 \
        || { echo "could not install$missing:"; tail -3 /tmp/ammeter-parts.$$.log; }
    rm -f /tmp/ammeter-parts.$$.log
    [ -z "${made:-}" ] || rm -f "$policy"
else
    echo "missing:$missing (their tests will be skipped)"
fi
grafana
exit 0
