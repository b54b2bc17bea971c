# PostgreSQL 15, the oldest version that is tested.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh
# shellcheck source=scripts/lib/postgres.sh
. "$scripts/lib/postgres.sh"

obtain() {
    if installed_postgres 15 15; then return; fi
    local tree
    tree=$(cached postgresql-15-bookworm postgres_debs bookworm 15)
    printf '%s\n' "$tree/usr/lib/postgresql/15/bin"
}
