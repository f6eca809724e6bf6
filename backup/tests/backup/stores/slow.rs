//! A store that takes its time: the archive is always busy with it. What has to end a generation ends it all the same.

use std::time::{Duration, Instant};

use etcd_client::Client;
use jiff::SignedDuration;
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
/// How far what two archives' watches have heard may lie apart: a second between two moments that are noted, and as much for a
/// busy machine.
const LAG: SignedDuration = SignedDuration::from_secs(2);

/// Deltas after a change of roles would be restored with the roles of before it.
pub async fn users_change() {
    let Some(binaries) = newest() else { return };
    let server = Double::start();
    let place = server.place("slow");
    let etcd = Etcd::start(&binaries);
    let mut client = etcd.connect().await;
    let store = place.arguments();
    let archive = Archive::into(&etcd, &store.iter().map(String::as_str).collect::<Vec<_>>());
    until("a generation", PATIENCE, || server.count("/full") == 1).await;
    server.slow_down(PAUSE);
    let writing = tokio::spawn(write(client.clone()));
    until("deltas", PATIENCE, || server.count("/m/") >= 2).await;
    client.role_add("reader").await.unwrap();
    until("a generation with the new role", PATIENCE, || server.count("/full") == 2).await;
    // No revision between the two is left out: it goes over only when all that came before is in the older one.
    let store = server.place("slow").open();
    let keys = generations(&store, &"blue".parse().unwrap()).await.unwrap();
    let [old, new] = &keys[..] else { panic!("{keys:?}") };
    until("a delta of the new generation", PATIENCE, || server.count(&format!("{}/m/", new.name.as_str())) >= 1).await;
    // What follows is this test's own reading.
    server.slow_down(Duration::ZERO);
    let (old, begun) = (Chain::read(&store, old).await.unwrap(), Instant::now());
    let new = loop {
        let new = Chain::read(&store, new).await.unwrap();
        if new.head() > old.head() {
            break new;
        }
        assert!(begun.elapsed() < PATIENCE, "it is not yet as far as the older one");
        tokio::time::sleep(LOOK_EVERY).await;
    };
    assert!(old.head() >= new.full.revision, "{} to {} is in neither", old.head(), new.full.revision);
    assert!(!writing.is_finished(), "it was to be busy all the time");
    writing.abort();
    archive.kill();
    is_as_exact(&new, &old);
}

/// A moment at which the older generation was still recorded into is looked for in the newer one. It knows it as well, though its
/// snapshot took its time.
fn is_as_exact(new: &Chain, old: &Chain) {
    let both = old.samples().filter(|sample| sample.at > new.full.taken && sample.at + LAG <= new.last_moment());
    let mut compared = 0;
    for sample in both {
        let known = new.samples().take_while(|own| own.at <= sample.at + LAG).last();
        let revision = known.map_or(new.full.revision, |known| known.revision);
        assert!(revision >= sample.revision, "{LAG} after {sample:?} it is {revision} in the newer one");
        compared += 1;
    }
    assert!(compared > 1, "the snapshot was too quick: {compared} moments to be compared");
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

/// Waits until it holds, and no longer than this.
pub async fn until(what: &str, patience: Duration, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < patience, "there is not {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
