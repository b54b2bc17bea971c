use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tollgate::{Quota, Rule};

use crate::arguments::Arguments;
use crate::client::Client;
use crate::load;
use crate::serve;
use crate::statistics::{Measured, Row, Run};
use crate::system::System;
use crate::target::Target;
use crate::workload::{DAY, PACE, Workload};

/// A system under test, with one client for each connection.
pub(crate) struct Contender {
    pub(crate) system: System,
    pub(crate) clients: Vec<Client>,
}

impl Contender {
    /// Connects to a server.
    pub(crate) async fn connect(system: System, uri: &str, connections: usize) -> anyhow::Result<Self> {
        let mut clients = Vec::new();
        for _ in 0..connections {
            clients.push(Client::connect(uri).await.with_context(|| system.to_string())?);
        }
        Ok(Self { system, clients })
    }

    /// Opens a limiter over PostgreSQL.
    pub(crate) fn in_process(url: &str) -> anyhow::Result<Self> {
        let limiter = serve::limiter(serve::postgres(url)?, false)?;
        let limit = u64::from(Workload::Paced.requests_per_day());
        let rule = Rule::Quota(Quota::calendar(limit, Duration::from_secs(DAY))?);
        Ok(Self { system: System::InProcess, clients: vec![Client::InProcess { limiter, rule }] })
    }
}

/// Measures each workload. Each repeat starts with another system.
pub(crate) async fn measure(arguments: &Arguments, contenders: &[Contender]) -> anyhow::Result<Vec<Measured>> {
    let mut all = Vec::new();
    for workload in arguments.workloads() {
        all.push(measure_one(arguments, contenders, workload).await?);
    }
    Ok(all)
}

async fn measure_one(arguments: &Arguments, contenders: &[Contender], workload: Workload) -> anyhow::Result<Measured> {
    let contenders: Vec<&Contender> = contenders.iter().filter(|one| workload.includes(one.system)).collect();
    let keys = workload.keys(arguments.keys());
    let mut targets: Vec<Arc<Target>> = Vec::new();
    for contender in &contenders {
        let target = Arc::new(Target::new(contender.system, workload, keys, 0));
        if workload != Workload::Attack {
            eprintln!("{}: making the buckets of {}", workload.name(), contender.system);
            load::each_once(&contender.clients, &target, arguments.load().tasks).await?;
        }
        targets.push(target);
    }
    let mut rows: Vec<Row> = contenders.iter().map(|one| Row { system: one.system, runs: Vec::new() }).collect();
    for repeat in 0..arguments.repeats() {
        for place in 0..contenders.len() {
            let place = (place + repeat as usize) % contenders.len();
            let contender = contenders[place];
            if workload == Workload::Attack {
                targets[place] = Arc::new(Target::new(contender.system, workload, keys, repeat + 1));
            }
            let run = turn(arguments, contender, &targets[place], repeat).await?;
            eprintln!("{}, {}: {:.0}/s", workload.name(), contender.system, run.per_second);
            for fault in &run.faults {
                eprintln!("{}, {}: {fault}", workload.name(), contender.system);
            }
            rows[place].runs.push(run);
        }
    }
    Ok(Measured { workload, keys, rows })
}

async fn turn(arguments: &Arguments, contender: &Contender, target: &Arc<Target>, repeat: u32) -> anyhow::Result<Run> {
    let (clients, load, threads) = (&contender.clients, arguments.load(), contender.system.threads());
    let sample = match target.workload {
        Workload::Paced => {
            // On a worker of the runtime, from which the tasks start at once.
            let sending = load::open(clients.clone(), Arc::clone(target), load, PACE, threads);
            tokio::spawn(sending).await.context("the open loop panicked")??
        }
        Workload::Attack => {
            load::exhaust(clients, target, load.tasks).await?;
            load::closed(clients, target, load, threads, u64::from(repeat)).await?
        }
        Workload::Hot | Workload::Uniform => load::closed(clients, target, load, threads, u64::from(repeat)).await?,
    };
    let mut run = Run::new(&sample, load.time);
    if let Some(error) = &sample.first_error {
        run.faults.push(format!("{} requests failed: {error}", sample.errors));
    }
    match target.workload {
        // A lease gives the tokens back that it holds, and they pass then.
        Workload::Attack if sample.granted > 0 && contender.system != System::TollgateLease => {
            run.faults.push(format!("{} requests passed after the last token", sample.granted));
        }
        Workload::Hot | Workload::Uniform | Workload::Paced if sample.denied > 0 => {
            run.faults.push(format!("{} requests were denied below the limit", sample.denied));
        }
        _ => {}
    }
    if let Some(client) = clients.first() {
        run.faults.extend(target.check(&mut client.clone()).await?);
    }
    Ok(run)
}
