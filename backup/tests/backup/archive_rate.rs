//! An archive beside an etcd to which up to 5,000 single puts are written a second, each a revision, while its store is away for
//! half of the time: nothing is skipped. What is asserted is how many there are; which rate the machine has reached is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use etcd_client::Client;
use quorate_backup::archive::status::Role;
use tokio::task::JoinSet;

use crate::archive_pressure::comes_back;
use crate::archive_pressure::gated::Gated;
use crate::archive_real::chains;
use crate::archive_roles::{Archive, reached};
use crate::archive_spilled::once_put_aside;
use crate::real::{Etcd, newest};

/// One put each, 5,000 a second at most.
const PERIOD: Duration = Duration::from_micros(200);
/// How many are written before the store is away, meanwhile, and while it takes what had to wait.
const BEFORE: u64 = 25_000;
const MEANWHILE: u64 = 50_000;
const AFTER: u64 = 25_000;
/// With values of a KiB some 26,000 of them are about to be stored or wait in memory; so much of the rest is put aside at least.
const VALUE: usize = 1 << 10;
const PUT_ASIDE: u64 = 16 << 20;
/// The keys that are written in turn.
const KEYS: u64 = 1_000;
/// Each connection has several puts under way.
const CONNECTIONS: usize = 4;
const WRITERS: usize = 64;
/// So many are stored in the time after which nobody waits for more.
const STEP: usize = 10_000;

/// Puts of values that get no smaller in the store, each when its time has come. It gives how long they took.
async fn write(connections: &[Client], puts: u64) -> Duration {
    let (next, begun) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let mut writers = JoinSet::new();
    for client in connections.iter().cycle().take(CONNECTIONS * WRITERS) {
        let (mut client, next) = (client.clone(), Arc::clone(&next));
        writers.spawn(async move {
            let (mut rng, mut value) = (fastrand::Rng::new(), vec![0; VALUE]);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= puts {
                    return;
                }
                rng.fill(&mut value);
                let due = begun + PERIOD * u32::try_from(number).unwrap();
                tokio::time::sleep_until(due.into()).await;
                client.put(format!("key/{}", number % KEYS), value.clone(), None).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    begun.elapsed()
}

/// How many are written a second.
fn rate(puts: u64, took: Duration) -> u128 {
    u128::from(puts) * 1000 / took.as_millis()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_one_of_100_000_revisions_written_at_up_to_5_000_a_second_is_stored() {
    let Some(binaries) = newest() else { return };
    let Some(store) = Gated::start(Duration::ZERO) else { return };
    let (etcd, folder) = (Etcd::start(&binaries), tempfile::tempdir().unwrap());
    let arguments = ["--flush-every", "1s", "--spill", folder.path().to_str().unwrap()];
    let mut archive = Archive::into(&etcd, &store.arguments(&arguments));
    let first = archive.says("a committer with a full snapshot", |report| report.head.is_some()).await;
    let begin = i64::try_from(first.head.unwrap().revision).unwrap();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(etcd.connect().await);
    }

    let before = write(&connections, BEFORE).await;
    store.shut();
    let meanwhile = write(&connections, MEANWHILE).await;
    let (_, aside) = once_put_aside(&archive, folder.path(), PUT_ASIDE).await;
    store.open();
    let after = write(&connections, AFTER).await;
    let written = Instant::now();
    let last = begin + (BEFORE + MEANWHILE + AFTER).cast_signed();
    for some in (begin..last).step_by(STEP).chain([last]) {
        archive.says("more of it", |report| reached(report, some)).await;
    }
    let behind = written.elapsed();
    let report = archive.says("well", |report| report.fault.is_none()).await;
    assert_eq!((report.role, report.generation), (Role::Committer, first.generation));
    archive.kill();
    eprintln!(
        "{}, {} and {} revisions a second before, while and after the store was away; {} MiB were put aside, and all was stored \
         {behind:.1?} after the last put",
        rate(BEFORE, before),
        rate(MEANWHILE, meanwhile),
        rate(AFTER, after),
        aside >> 20
    );

    let all = chains(&store.folder()).await;
    let [chain] = &all[..] else { panic!("{} generations", all.len()) };
    assert_eq!((chain.full.revision.to_etcd(), chain.head().to_etcd()), (begin, last));
    let events: u64 = chain.links.iter().map(|link| link.delta.events).sum();
    assert_eq!(events, BEFORE + MEANWHILE + AFTER, "each put is a revision of its own");
    // etcd's hash is of all that was ever written until then.
    let while_away = begin + BEFORE.cast_signed()..begin + (BEFORE + MEANWHILE).cast_signed();
    for revision in [fastrand::i64(while_away), last] {
        comes_back(&mut connections[0], &store.folder(), revision).await;
    }
}
