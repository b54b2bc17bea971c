# Redis that writes nothing to the disk: what scripts/bench compares with commits that do not wait for the disk.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh
# shellcheck source=scripts/lib/redis.sh
. "$scripts/lib/redis.sh"

obtain() { obtain_redis; }

boot() { boot_redis --appendonly no; }
