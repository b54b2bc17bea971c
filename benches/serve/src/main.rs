//! Measures `tollgate serve` beside services over Redis, in turns: see `scripts/bench serve` and `benches/README.md`.

mod arguments;
mod client;
mod cpu;
mod load;
mod proto;
mod report;
mod scratch;
mod serve;
mod server;
mod stand_in;
mod statistics;
mod system;
mod target;
mod turns;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, process};

use anyhow::Context;
use clap::Parser;
use tokio::runtime::Runtime;
use tollgate_serve::Address;

use arguments::Arguments;
use scratch::Scratch;
use serve::Settings;
use server::Running;
use stand_in::StandIn;
use statistics::Measured;
use system::System;
use turns::Contender;
use workload::{ENTRY, Workload};

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let load = server::runtime("load")?;
    let run = format!("tsb{}", process::id());
    let directory = env::temp_dir().join(&run);
    let scratch = load.block_on(Scratch::create(&run))?;
    let measured = measure(&arguments, &load, &scratch, &directory);
    // Both are removed, also after an error.
    let removed = load.block_on(scratch.remove());
    let _ = fs::remove_dir_all(&directory);
    let measured = measured?;
    removed?;
    let report = report::markdown(&arguments, &measured);
    if let Some(parent) = arguments.output.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(&arguments.output, &report).with_context(|| arguments.output.display().to_string())?;
    println!("{report}");
    let mut faults = measured.iter().flat_map(Measured::faults);
    Ok(if faults.next().is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(
    arguments: &Arguments,
    load: &Runtime,
    scratch: &Scratch,
    directory: &Path,
) -> anyhow::Result<Vec<Measured>> {
    let systems = arguments.systems();
    let config = configure(directory)?;
    let mut servers: Vec<Running> = Vec::new();
    let mut uris: Vec<(System, String)> = Vec::new();
    let has_tollgate = systems.contains(&System::Tollgate) || systems.contains(&System::TollgateUnix);
    if has_tollgate {
        let socket = directory.join("socket");
        // The server binds the port itself.
        let (_, address) = server::listen()?;
        let listen = vec![Address::Tcp(address), Address::Unix(socket.clone())];
        let settings = Settings { config: config.clone(), listen, lease: false };
        let url = scratch.postgres.clone();
        let name = System::Tollgate.name();
        servers.push(Running::start(name, move |ended| serve::over_postgres(url, settings, ended))?);
        uris.push((System::Tollgate, format!("http://{address}")));
        uris.push((System::TollgateUnix, format!("unix://{}", socket.display())));
    }
    if systems.contains(&System::TollgateLease) {
        let (_, address) = server::listen()?;
        let settings = Settings { config: config.clone(), listen: vec![Address::Tcp(address)], lease: true };
        let url = scratch.postgres.clone();
        let name = System::TollgateLease.name();
        servers.push(Running::start(name, move |ended| serve::over_postgres(url, settings, ended))?);
        uris.push((System::TollgateLease, format!("http://{address}")));
    }
    if systems.contains(&System::TollgateMemory) {
        let (_, address) = server::listen()?;
        let settings = Settings { config, listen: vec![Address::Tcp(address)], lease: false };
        let name = System::TollgateMemory.name();
        servers.push(Running::start(name, move |ended| serve::over_memory(settings, ended))?);
        uris.push((System::TollgateMemory, format!("http://{address}")));
    }
    if systems.contains(&System::StandIn) {
        let (listener, address) = server::listen()?;
        let redis = scratch.redis.clone();
        let name = System::StandIn.name();
        servers.push(Running::start(name, move |ended| StandIn::serve(redis, listener, ended))?);
        uris.push((System::StandIn, format!("http://{address}")));
    }
    uris.retain(|(system, _)| systems.contains(system));

    let measured = load.block_on(async {
        tokio::select! {
            measured = measure_all(arguments, &uris, &systems, scratch) => measured,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.context("no signals").and_then(|()| anyhow::bail!("interrupted"))
            }
        }
    });
    let mut ended = Ok(());
    for server in servers {
        let end = server.end();
        ended = ended.and(end);
    }
    // The error of a server explains those of its clients.
    ended?;
    measured
}

async fn measure_all(
    arguments: &Arguments,
    uris: &[(System, String)],
    systems: &[System],
    scratch: &Scratch,
) -> anyhow::Result<Vec<Measured>> {
    let mut contenders = Vec::new();
    for (system, uri) in uris {
        contenders.push(Contender::connect(*system, uri, arguments.connections()).await?);
    }
    if systems.contains(&System::InProcess) {
        contenders.push(Contender::in_process(&scratch.postgres)?);
    }
    turns::measure(arguments, &contenders).await
}

/// Writes the configuration of `tollgate serve`: a domain for each workload.
fn configure(directory: &Path) -> anyhow::Result<PathBuf> {
    let limits = directory.join("limits");
    fs::create_dir_all(&limits)?;
    for workload in Workload::ALL {
        let (domain, requests) = (workload.name(), workload.requests_per_day());
        let yaml = format!(
            "domain: {domain}\n\
             descriptors:\n\
             - key: {ENTRY}\n  rate_limit: {{ unit: day, requests_per_unit: {requests} }}\n"
        );
        fs::write(limits.join(format!("{domain}.yaml")), yaml)?;
    }
    Ok(limits)
}
