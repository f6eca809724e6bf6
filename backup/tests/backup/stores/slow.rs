//! A store that takes its time: the archive is always busy with it. What has to end a generation ends it all the same.

use std::time::{Duration, Instant};

use etcd_client::Client;
use quorate_backup::format::{Chain, generations};
use tokio::time::{MissedTickBehavior, interval};

use super::Server;
use super::google::Double;
use crate::archive_real::Archive;
use crate::real::{Etcd, newest};

/// How long the store keeps each answer back once there is a generation. A flush takes at least two.
const PAUSE: Duration = Duration::from_millis(500);
/// A value, and how often one is written: in the time of a flush more than the next one needs to begin at once.
const VALUE: usize = 1 << 20;
const WRITE_EVERY: Duration = Duration::from_millis(125);
/// How long the archive may take to get so far. A role that changes is noticed within some seconds; the full snapshot of what
/// was written until then takes its time as well.
const PATIENCE: Duration = Duration::from_mins(2);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Deltas after a change of roles would be restored with the roles of before it.
pub async fn users_change() {
    let Some(binaries) = newest() else { return };
    let server = Double::start();
    let place = server.place("slow");
    let etcd = Etcd::start(&binaries);
    let mut client = etcd.connect().await;
    let store = place.arguments();
    let archive = Archive::into(&etcd, &store.iter().map(String::as_str).collect::<Vec<_>>());
    until("a generation", || server.count("/full") == 1).await;
    server.slow_down(PAUSE);
    let writing = tokio::spawn(write(client.clone()));
    until("deltas", || server.count("/m/") >= 2).await;
    client.role_add("reader").await.unwrap();
    until("a generation with the new role", || server.count("/full") == 2).await;
    // No revision between the two is left out: it goes over only when all that came before is in the older one.
    let store = server.place("slow").open();
    let keys = generations(&store, &"blue".parse().unwrap()).await.unwrap();
    let [old, new] = &keys[..] else { panic!("{keys:?}") };
    until("a delta of the new generation", || server.count(&format!("{}/m/", new.name.as_str())) >= 1).await;
    // What follows is this test's own reading.
    server.slow_down(Duration::ZERO);
    let (old, new) = (Chain::read(&store, old).await.unwrap(), Chain::read(&store, new).await.unwrap());
    assert!(old.head() >= new.full.revision, "{} to {} is in neither", old.head(), new.full.revision);
    assert!(!writing.is_finished(), "it was to be busy all the time");
    writing.abort();
    archive.kill();
}

async fn write(mut client: Client) {
    let mut ticks = interval(WRITE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut value = vec![0; VALUE];
    loop {
        ticks.tick().await;
        // Nothing that gets smaller in the store.
        fastrand::Rng::new().fill(&mut value);
        client.put("busy", value.clone(), None).await.unwrap();
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "there is not {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
