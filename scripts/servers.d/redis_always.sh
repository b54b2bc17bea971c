# Redis that has each command on the disk before it answers: what scripts/bench compares with commits that wait for it.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh
# shellcheck source=scripts/lib/redis.sh
. "$scripts/lib/redis.sh"

obtain() { obtain_redis; }

boot() { boot_redis --appendonly yes --appendfsync always; }
