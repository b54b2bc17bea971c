//! Generates client and server of Envoy's rate limit service, from the files of `tollgate serve`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let descriptors = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], [PROTO])?;
    tonic_prost_build::configure().build_transport(false).compile_fds(descriptors)?;
    Ok(())
}

const PROTO: &str = "../../serve/proto";
