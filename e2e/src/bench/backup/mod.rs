//! How fast backups are, and how little they disturb: the agent against the same by hand with etcd's own tools, zstd and
//! curl, in turn, on one machine without Kubernetes. It measures, and says which rows are within what they are to reach;
//! nothing fails for being slow.

mod bed;
mod latency;
mod load;
mod process;
mod rows;

use anyhow::{Context as _, Result};

use super::report::Report;
use crate::debian::{self, Need};
use crate::images;
use crate::progress::Progress;
use crate::tools::{self, Etcd, Tool};
use crate::workspace;
use bed::{Bed, Programs};

/// The keys of the database when nothing else is asked for.
pub const KEYS: u64 = 1_000_000;
/// The events that follow the full snapshot.
pub const EVENTS: u64 = 300_000;

const NEEDS: &[Need] =
    &[Need::Program("curl", "curl"), Need::Program("zstd", "zstd"), Need::File("/etc/ssl/certs", "ca-certificates")];

/// The members among whom the leadership is moved.
const MEMBERS: usize = 3;

/// Measures all rows, prints them as a table and writes them to `target/bench/backup.json`.
pub async fn run(runs: u32, keys: u64, events: u64) -> Result<()> {
    let programs = programs().await?;
    let mut bed = Bed::new(programs.clone(), 1).await?;
    let mut report = Report::default();
    let path = workspace::root().join("target/bench/backup.json");
    eprintln!("{keys} keys of 512 bytes");
    load::fill(&bed.client().await?, keys).await.context("failed to fill the database")?;
    let mut add = |rows: rows::Rows| {
        for (name, unit, reach, measured) in rows {
            report.add(name.into(), unit, reach, &measured);
        }
        // Rows that fail later shall not cost the earlier ones.
        report.write(&path)
    };
    add(rows::snapshot(&bed, runs).await.context("failed to measure snapshots")?)?;
    add(rows::restore_full(&bed, runs).await.context("failed to measure restores")?)?;
    add(rows::record(&bed, events).await.context("failed to record events")?)?;
    add(rows::restore_with_deltas(&bed, runs).await.context("failed to measure restores with deltas")?)?;
    add(rows::disturbance(&mut bed, runs).await.context("failed to measure how writes are disturbed")?)?;
    // It leaves the disk and the processors to the next one.
    drop(bed);
    let bed = Bed::new(programs, MEMBERS).await?;
    add(rows::handover(&bed, runs).await.context("failed to measure hand-overs")?)?;
    println!("{report}");
    Ok(())
}

async fn programs() -> Result<Programs> {
    let progress = Progress::new();
    debian::ensure(NEEDS, &progress).await?;
    let etcd = tools::build(Tool::Etcd(Etcd::V3_6), &progress).await?;
    let store = tools::build(Tool::VersityGw, &progress).await?.program("versitygw");
    let [_, agent] = images::programs(&progress).await?;
    Ok(Programs { etcd: etcd.bin(), store, agent })
}
