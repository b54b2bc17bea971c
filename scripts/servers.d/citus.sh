# The coordinator of the Citus cluster, which knows the workers.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh
# shellcheck source=scripts/lib/citus.sh
. "$scripts/lib/citus.sh"

boot() {
    local port worker
    boot_node
    read -r _ port < <(host_and_port "$(recorded citus url)")
    node_sql "$port" postgres "select citus_set_coordinator_host('127.0.0.1', $port)"
    for worker in citus_worker1 citus_worker2; do
        read -r _ worker < <(host_and_port "$(recorded "$worker" url)")
        node_sql "$port" postgres "select citus_add_node('127.0.0.1', $worker)"
    done
}
