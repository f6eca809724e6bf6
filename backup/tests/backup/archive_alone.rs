//! The archive of a cluster of one whose pod was away: what came then nobody else has recorded. It goes on with the history
//! that etcd still has of it, and begins anew where that was compacted.

use std::path::Path;

use etcd_client::CompactionOptions;
use quorate_backup::archive::status::{Reason, Role};

use crate::agent::{Ended, run};
use crate::archive_real::chains;
use crate::archive_roles::{Archive, put, reached};
use crate::fake::{Mood, Served};
use crate::real::{Binaries, Etcd, each_version};
use crate::recorded::{address, files};
use crate::snapshot::large;

fn beside(etcd: &Etcd, store: &Path) -> Archive {
    Archive::into(etcd, &["--store", &address(store), "--flush-every", "200ms"])
}

/// Both end at once, as their pod does, and the member is back first.
fn comes_back_without(archive: &mut Archive, etcd: &mut Etcd) {
    archive.kill();
    etcd.kill();
    etcd.resume();
}

async fn compact(etcd: &Etcd, revision: i64) {
    let physical = CompactionOptions::new().with_physical();
    etcd.connect().await.compact(revision, Some(physical)).await.unwrap();
}

/// Restores a database of this revision.
fn restore(store: &Path, revision: i64) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let (store, to, database) = (address(store), revision.to_string(), folder.path().join("db"));
    let arguments = ["restore", "--store", &store, "--lineage", "blue", "--to", &to, "-o", "json", "--database"];
    run(&[&arguments[..], &[database.to_str().unwrap()]].concat())
}

async fn goes_on_or_begins_anew(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let mut etcd = Etcd::start(binaries);
    let mut archive = beside(&etcd, store.path());
    let first = archive.says("a committer with a full snapshot", |report| report.head.is_some()).await;
    let recorded = put(&etcd).await;
    archive.says("all of it", |report| reached(report, recorded)).await;

    // Compacted is what was recorded, and nothing that was missed.
    comes_back_without(&mut archive, &mut etcd);
    let missed = [put(&etcd).await, put(&etcd).await];
    compact(&etcd, recorded).await;
    let mut archive = beside(&etcd, store.path());
    let report = archive.says("what it has missed", |report| reached(report, missed[1])).await;
    assert_eq!((report.role, &report.generation), (Role::Committer, &first.generation));

    // Compacted is also what was missed.
    comes_back_without(&mut archive, &mut etcd);
    let (lost, compacted) = (put(&etcd).await, put(&etcd).await);
    compact(&etcd, compacted).await;
    let mut archive = beside(&etcd, store.path());
    archive.says("in a new generation", |report| reached(report, compacted)).await;
    let newest = put(&etcd).await;
    let report = archive.says("all of it", |report| reached(report, newest)).await;
    assert_eq!((report.role, report.fault), (Role::Committer, None));
    archive.kill();

    let all = chains(store.path()).await;
    let [old, new] = &all[..] else { panic!("{} generations", all.len()) };
    assert_eq!((old.head().to_etcd(), new.full.revision.to_etcd()), (missed[1], compacted));
    for revision in [recorded, missed[0], missed[1], compacted, newest] {
        let restored = restore(store.path(), revision).json();
        assert_eq!(restored["revision"].as_i64(), Some(revision), "{restored}");
    }
    let refused = restore(store.path(), lost);
    let words = format!("no backup holds revision {lost}");
    assert!(refused.error().contains(&words), "{}", refused.stderr);
}

#[test]
fn one_whose_pod_was_away_goes_on_or_begins_anew_where_the_history_was_compacted() {
    each_version(goes_on_or_begins_anew);
}

#[tokio::test]
async fn one_beside_an_etcd_whose_watches_leave_events_out_says_so_and_records_nothing() {
    let store = tempfile::tempdir().unwrap();
    let member = Served::of_version("3.5.15", Mood::Sound, large(0));
    let at = address(store.path());
    let mut archive = Archive::beside(&member.url, &["--store", &at, "--flush-every", "200ms"]);
    let fault = archive.says("what is wrong", |report| report.fault.is_some()).await.fault.unwrap();
    assert_eq!(fault.reason, Reason::MemberUnreadable, "{}", fault.message);
    let words = ["etcd 3.5.15", "3.5.16 or later", "`quorate-agent snapshot` does not"];
    assert!(words.iter().all(|words| fault.message.contains(words)), "{}", fault.message);
    // A snapshot needs no watch, and is there beside it.
    let files = files(store.path());
    assert_eq!(files.len(), 1, "more than what says the format: {files:?}");
    let taken = run(&["snapshot", "--endpoint", &member.url, "--store", &at, "--lineage", "blue", "-o", "json"]).json();
    assert_eq!(taken["revision"].as_u64(), Some(7), "{taken}");
    let since = fault.since;
    let report = archive.says("still the same", |report| report.fault.is_some()).await;
    assert_eq!((report.fault.unwrap().since, report.head), (since, None));
    let all = chains(store.path()).await;
    let [chain] = &all[..] else { panic!("{} generations", all.len()) };
    assert_eq!((chain.full.etcd_version.as_str(), chain.links.len()), ("3.5.15", 0));
}
