//! A store that takes new credentials before the archives have them: what is written meanwhile is held, by the one that records
//! and by the one that stands by, and is in the same generation when they have them too.

use etcd_client::CompactionOptions;
use quorate_backup::archive::status::{Fault, Reason, Role};
use quorate_backup::format::generations;

use super::Server;
use super::google::{Double, KEY_FILE};
use crate::archive_roles::{Archive, put, reached};
use crate::real::{Etcd, newest};

/// The archives find out that they are refused, and nobody could read once more what is written meanwhile. It tells the last
/// revision, and the new key.
async fn refuses(server: &mut Double, etcd: &Etcd, archives: &mut [Archive; 2]) -> (i64, String) {
    let key = server.change_key();
    for _ in 0..3 {
        put(etcd).await;
    }
    let last = put(etcd).await;
    for archive in archives {
        let refused = |fault: &Fault| fault.reason == Reason::StoreRefused;
        archive.says("refused", |report| report.fault.as_ref().is_some_and(refused)).await;
    }
    etcd.connect().await.compact(last, Some(CompactionOptions::new().with_physical())).await.unwrap();
    (last, key)
}

/// The follower leads from now on, if it does not already.
async fn hands_over(leader: &Etcd, follower: &Etcd) {
    let status = follower.connect().await.status().await.unwrap();
    let follower = status.header().unwrap().member_id();
    if status.leader() != follower {
        leader.connect().await.move_leader(follower).await.unwrap();
    }
}

pub async fn until_it_is_told_the_new_key() {
    let Some(binaries) = newest() else { return };
    let mut server = Double::start();
    let place = server.place("refused");
    let (leader, follower) = Etcd::pair(&binaries).await;
    let store = place.arguments();
    let arguments: Vec<_> = store.iter().map(String::as_str).chain(["--flush-every", "200ms"]).collect();
    let mut first = Archive::into(&leader, &arguments);
    first.says("a committer with a full snapshot", |report| report.head.is_some()).await;
    let mut second = Archive::into(&follower, &arguments);
    second.says("beside the first", |report| report.head.is_some()).await;
    let mut archives = [first, second];

    let (last, key) = refuses(&mut server, &leader, &mut archives).await;
    place.renew(KEY_FILE, &key);
    for archive in &mut archives {
        archive.says("all of it", |report| report.fault.is_none() && reached(report, last)).await;
    }

    // Now the one that stood by is the only one that holds it.
    let (last, key) = refuses(&mut server, &leader, &mut archives).await;
    let [mut first, mut second] = archives;
    first.kill();
    hands_over(&leader, &follower).await;
    place.renew(KEY_FILE, &key);
    let report = second.says("what it held", |report| reached(report, last)).await;
    assert_eq!((report.role, report.fault), (Role::Committer, None));
    assert_eq!(generations(&place.open(), &"blue".parse().unwrap()).await.unwrap().len(), 1);
}
