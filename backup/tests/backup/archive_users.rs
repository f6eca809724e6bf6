//! Archives beside an etcd whose users are turned on: they go on when their login has run out, notice whom there is, and say
//! what the user lacks that they were given.

use std::fs;
use std::path::Path;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Permission, PutOptions};
use quorate_backup::archive::status::{Reason, Report, Role};
use quorate_backup::format::LeaseGrant;
use tempfile::TempDir;

use crate::archive_real::{chains, comes_back};
use crate::archive_roles::{Archive, reached};
use crate::real::{Binaries, Etcd, each_version};
use crate::recorded::address;

const ROOT: &str = "root";
const PASSWORD: &str = "a password";
/// A login is good for two seconds after its last use. To hash passwords well takes a processor long.
const FLAGS: [&str; 2] = ["--auth-token-ttl=2", "--bcrypt-cost=4"];
/// Longer than that: etcd looks each second for those that have run out.
const LIFE: Duration = Duration::from_secs(4);
const TTL: i64 = 700;

/// One whose users are turned on: root, and these without any role.
async fn with_users(binaries: &Binaries, others: &[&str]) -> Etcd {
    let mut etcd = Etcd::stopped(binaries, tempfile::tempdir().unwrap());
    etcd.resume_with(&FLAGS);
    let mut client = etcd.connect().await;
    for name in [&[ROOT], others].concat() {
        client.user_add(name, PASSWORD, None).await.unwrap();
    }
    client.user_grant_role(ROOT, "root").await.unwrap();
    client.auth_enable().await.unwrap();
    etcd
}

/// Its login is no older than what it is asked for next.
async fn log_in(etcd: &Etcd, name: &str) -> Client {
    Client::connect([etcd.url()], Some(ConnectOptions::new().with_user(name, PASSWORD))).await.unwrap()
}

/// From now on this user may read each key.
async fn may_read(etcd: &Etcd, name: &str) {
    let mut root = log_in(etcd, ROOT).await;
    root.role_add("reads").await.unwrap();
    root.role_grant_permission("reads", Permission::read("").with_all_keys()).await.unwrap();
    root.user_grant_role(name, "reads").await.unwrap();
}

async fn put(etcd: &Etcd, options: Option<PutOptions>) -> i64 {
    log_in(etcd, ROOT).await.put("key", "value", options).await.unwrap().header().unwrap().revision()
}

/// An archive that logs in as this user.
fn logged_in(etcd: &Etcd, name: &str, (store, password): (&Path, &TempDir), interval: &str) -> Archive {
    let (store, file) = (address(store), password.path().join("password"));
    fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let user = ["--etcd-user", name, "--etcd-password-file", file.to_str().unwrap()];
    Archive::into(etcd, &[&["--store", &store, "--flush-every", interval], &user[..]].concat())
}

async fn goes_on(binaries: &Binaries) {
    let (store, password) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let etcd = with_users(binaries, &["ben"]).await;
    // Whatever it asks by the clock is asked when the login of before has run out.
    let interval = format!("{}s", LIFE.as_secs());
    let mut archive = logged_in(&etcd, ROOT, (store.path(), &password), &interval);
    let first = archive.says("a committer with a full snapshot", |report| report.head.is_some()).await;
    tokio::time::sleep(LIFE).await;
    let lease = log_in(&etcd, ROOT).await.lease_grant(TTL, None).await.unwrap().id();
    let last = put(&etcd, Some(PutOptions::new().with_lease(lease))).await;
    let report = archive.says("all of it", |report| reached(report, last)).await;
    assert_eq!((report.role, report.fault, &report.generation), (Role::Committer, None, &first.generation));
    let [chain] = &chains(store.path()).await[..] else { panic!("it is in several generations") };
    let mut learned = chain.links.iter().flat_map(|link| &link.delta.leases);
    assert!(learned.any(|grant| *grant == LeaseGrant { id: lease, ttl: TTL }), "nobody has learned of the lease");

    // Users and roles are in no watch, so a full snapshot follows.
    may_read(&etcd, "ben").await;
    let another = |report: &Report| report.generation != first.generation;
    archive.says("in another generation", another).await;
    let last = put(&etcd, None).await;
    let report = archive.says("all of it", |report| another(report) && reached(report, last)).await;
    assert_eq!((report.role, report.fault), (Role::Committer, None));
    archive.kill();
    drop(etcd);

    let (etcd, _) = comes_back(binaries, store.path(), &last.to_string());
    let refused = etcd.connect().await.get("key", None).await.unwrap_err().to_string();
    assert!(refused.contains("user name is empty"), "{refused}");
    let mut ben = log_in(&etcd, "ben").await;
    assert_eq!(ben.get("key", None).await.unwrap().kvs()[0].value(), b"value");
    let refused = ben.put("key", "other", None).await.unwrap_err().to_string();
    assert!(refused.contains("permission denied"), "{refused}");
    put(&etcd, None).await;
}

#[test]
fn one_beside_an_etcd_with_users_records_on_when_its_login_has_run_out_and_notices_who_is_new() {
    each_version(goes_on);
}

async fn says_what_it_lacks(binaries: &Binaries) {
    let password = tempfile::tempdir().unwrap();
    let etcd = with_users(binaries, &["nobody", "reader"]).await;
    may_read(&etcd, "reader").await;
    // The one may not read a key, the other may read each and no snapshot.
    for (user, reason) in [("nobody", Reason::MemberUnreadable), ("reader", Reason::SnapshotBroken)] {
        let store = tempfile::tempdir().unwrap();
        let mut archive = logged_in(&etcd, user, (store.path(), &password), "200ms");
        let report = archive.says("what is missing", |report| report.fault.is_some()).await;
        let fault = report.fault.unwrap();
        assert_eq!((fault.reason, report.head), (reason, None), "{}", fault.message);
        assert!(fault.message.contains("permission denied"), "{}", fault.message);
        assert!(fault.message.contains("needs the role root"), "{}", fault.message);
        assert!(!archive.is_ready(), "it says that it could record");
        assert_eq!(chains(store.path()).await, []);

        log_in(&etcd, ROOT).await.user_grant_role(user, "root").await.unwrap();
        let last = put(&etcd, None).await;
        let well = |report: &Report| report.fault.is_none() && reached(report, last);
        assert_eq!(archive.says("well", well).await.role, Role::Committer);
        archive.kill();
    }
}

#[test]
fn one_whose_user_is_not_root_says_so_and_records_as_soon_as_it_is() {
    each_version(says_what_it_lacks);
}
