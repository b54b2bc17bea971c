# The second worker of the Citus cluster.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh
# shellcheck source=scripts/lib/citus.sh
. "$scripts/lib/citus.sh"

boot() { boot_node; }
