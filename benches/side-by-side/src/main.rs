//! Measures decisions beside Redis and others, in turns: see `scripts/bench` and `benches/README.md`.

mod arguments;
mod books;
mod checker;
mod cpu;
mod drive;
mod engine;
mod goals;
mod growth;
mod http;
mod neighbours;
mod pace;
mod peer;
mod peers;
mod popularity;
mod processes;
mod proxy;
mod report;
mod sample;
mod scene;
mod server;
mod statistics;
mod steady;
mod system;
mod tally;
mod turns;
mod venues;
mod waiters;
mod workload;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use tokio::runtime::Runtime;

use arguments::Arguments;
use report::Report;
use turns::Turns;
use venues::Venues;

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.delay_us > 0 {
        return proxy::run_behind(Duration::from_micros(arguments.delay_us));
    }
    if let Some(directory) = &arguments.draw {
        report::saved::draw_all(directory)?;
        return Ok(ExitCode::SUCCESS);
    }
    Runtime::new()?.block_on(run(arguments))
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if let Some(job) = &arguments.worker {
        processes::work(job).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let workloads = arguments.workloads()?;
    std::fs::create_dir_all(&arguments.output)?;
    std::fs::create_dir_all("target/bench")?;
    let run = format!("tb{}", std::process::id());
    let venues = Venues::make(&run, &arguments.engines).await?;
    let reported = tokio::select! {
        reported = measure(&arguments, &workloads, &venues, &run) => reported,
        interrupted = tokio::signal::ctrl_c() => interrupted.context("no signals").and_then(|()| anyhow::bail!("interrupted")),
    };
    venues.remove().await?;
    let report = reported?;
    for fault in report.faults() {
        eprintln!("fault: {fault}");
    }
    Ok(if report.faults().next().is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Measures every workload. Writes the report after each of them, so that an interrupted run has a report.
async fn measure(
    arguments: &Arguments,
    workloads: &[&'static workload::Workload],
    venues: &Venues,
    run: &str,
) -> anyhow::Result<Report> {
    let mut report = Report::new(arguments, venues.versions().await?);
    let mut turns = Turns::new(arguments, venues, run);
    for workload in workloads {
        report.add(turns.measure(workload).await?);
        report.write(&arguments.output)?;
    }
    if let Some(waiters) = arguments.waiters() {
        for &engine in &arguments.engines {
            report.add_waited(engine.name(), waiters::measure(engine, run, venues, waiters).await);
            report.write(&arguments.output)?;
        }
        report.add_waited("memory", waiters::in_process(waiters).await);
        report.write(&arguments.output)?;
    }
    if arguments.neighbours() {
        let (repeats, keys) = (arguments.repeats(), arguments.keys());
        report
            .add_beside(neighbours::measure(run, venues, &mut turns, repeats, keys, arguments.pgbench_seconds()).await);
        report.write(&arguments.output)?;
    }
    if arguments.growth() {
        let curves = growth::measure(arguments, venues, run).await?;
        report.add_faults(curves.iter().flat_map(growth::Curve::faults));
        println!("{}", report::growth::write(&curves, &arguments.output)?);
    }
    if arguments.steady() {
        let stretches = steady::measure(arguments, run).await?;
        println!("{}", report::steady::write(&stretches, &arguments.output)?);
    }
    if report.is_of_something() {
        println!("{}", report.markdown());
    }
    Ok(report)
}
