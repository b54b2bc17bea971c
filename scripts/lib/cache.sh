# Downloads are kept in $cache, so that only the first start needs the network.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

# Prints the cached directory NAME. If there is none, `BUILDER DIR ARG...` fills a temporary directory that
# is then renamed, so that an interrupted download is never taken for a complete one. Its errors end it, so call it
# where errexit works: not as a condition, and not before && or ||.
cached() ( # NAME BUILDER ARG...
    directory=$cache/$1
    if [[ ! -d $directory ]]; then
        mkdir -p "$cache"
        # By the change time: unpacking a package sets the modification time to the package's own.
        find "$cache" -maxdepth 1 -name '.unpacking.*' -cmin +60 -exec rm -rf {} +
        temporary=$(mktemp -d "$cache/.unpacking.XXXXXX")
        trap 'rm -rf "$temporary"' EXIT
        "$2" "$temporary" "${@:3}" >&2
        # Readable for the user of the servers, and without the set-user-id programs of some packages.
        chmod -R ug-s,u+rwX,go+rX "$temporary"
        # Another start may have been faster.
        mv -T "$temporary" "$directory" 2>/dev/null || [[ -d $directory ]]
    fi
    "${as_user[@]}" test -x "$directory" ||
        die "user $service_user cannot read $directory; set XDG_CACHE_HOME to a directory that it can"
    printf '%s\n' "$directory"
)

# What packages/ pins, by version and hash. A cached directory has this in its name, so that another pin is another download.
pins() { sha256sum <"$repo/scripts/packages/$1" | cut -c1-12; } # FILE

# Only what packages/FILE names, and only with a hash that it lists.
pip_packages() { # DIR FILE
    retry quietly python3 -m pip install --quiet --require-hashes --no-deps --only-binary :all: --target "$1" \
        --requirement "$repo/scripts/packages/$2"
}

# Prints a directory with the packages that packages/FILE pins, for the Python that is installed.
python_packages() { # NAME FILE
    local version
    version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])') || die "python3 is not installed"
    at_least 3.10 "$version" || die "Python 3.10 is needed, this is $version"
    cached "$1-$version-$(pins "$2")" pip_packages "$2"
}
