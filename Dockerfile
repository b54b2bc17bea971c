# The CLI with `tollgate serve`: docs/serve.md.
#
#   docker build --tag tollgate .
#   docker run --read-only --stop-timeout 20 --env DATABASE_URL --volume "$PWD/limits.yaml:/limits.yaml:ro" \
#     --publish 127.0.0.1:8081:8081 tollgate serve --config /limits.yaml --listen 0.0.0.0:8081 --insecure
#
# `--insecure` suits a port that is published to this host alone. Requests get ten seconds to end, as long as Docker's default.
FROM rust:1.94-bookworm AS build
WORKDIR /src
COPY . .
# Two caches of BuildKit; the program leaves them, because a cache is not part of the image.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --locked --release --package tollgate-cli && install -D --strip target/release/tollgate /out/tollgate

# glibc, libgcc and the authorities of TLS, and no shell. Of the same Debian as the compiler, so that glibc is not older.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/LICENSE-APACHE /src/LICENSE-MIT /licenses/
COPY --from=build /out/tollgate /usr/local/bin/tollgate
# The user `nonroot`, as a number, so that Kubernetes can check `runAsNonRoot`. It writes nothing but a socket or an SQLite file.
USER 65532:65532
EXPOSE 8081
STOPSIGNAL SIGTERM
ENTRYPOINT ["tollgate"]
