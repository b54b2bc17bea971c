# Go's compiler and the modules of the pages. Needs lib/cache.sh and lib/debs.sh.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

# Compiler and modules come from one suite, so that neither an installed Go nor a module proxy is needed. Of Debian's
# suites only sid has pgx 5; the versions are whatever sid has on the day of the download.
go_debs() { # DIR
    unpack_debs "$1" sid golang-go golang-github-jackc-pgx-v5-dev golang-github-go-sql-driver-mysql-dev
}

go_tree() { cached go-sid go_debs; }

# Formats and builds as the pages say, in the directory of $GOPATH.
use_go() { # TREE
    # Debian's modules are laid out for the mode without modules.
    export GO111MODULE=off GOPATH=$PWD:$1/usr/share/gocode GOCACHE=$cache/go-build CGO_ENABLED=0 GOTOOLCHAIN=local
    unset GOROOT GOFLAGS
    PATH=$1/usr/bin:$PATH
}

formatted() { # PAGE FILE...
    local page=$1
    shift
    gofmt -d "$@" >unformatted
    [[ ! -s unformatted ]] || die "gofmt would change $page: $(cat unformatted)"
}
