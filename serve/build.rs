//! Generates the messages of Envoy's rate limit service, their JSON, and the description that reflection serves.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;
    let encoded = descriptors.encode_to_vec();
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin"), &encoded)?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .compile_well_known_types(true)
        .extern_path(".google.protobuf", "::pbjson_types")
        .compile_fds(descriptors)?;
    pbjson_build::Builder::new().register_descriptors(&encoded)?.build(&[".envoy"])?;
    Ok(())
}
